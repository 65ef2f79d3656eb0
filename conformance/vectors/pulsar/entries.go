// Sends what stdin says with Pulsar's Go client; make_entries.py drives it.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

type message struct {
	Key         string            `json:"key"`
	OrderingKey string            `json:"ordering_key"`
	Value       []byte            `json:"value"`
	EventTime   int64             `json:"event_time"`
	Properties  map[string]string `json:"properties"`
}

type topic struct {
	Topic     string      `json:"topic"`
	Codec     string      `json:"codec"`
	Mode      string      `json:"mode"`
	Encrypted bool        `json:"encrypted"`
	Sends     [][]message `json:"sends"`
}

var codecs = map[string]pulsar.CompressionType{
	"NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
}

func main() {
	var told struct {
		ServiceURL string  `json:"service_url"`
		PublicKey  string  `json:"public_key"`
		Topics     []topic `json:"topics"`
	}
	check(json.NewDecoder(os.Stdin).Decode(&told))
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: told.ServiceURL})
	check(err)
	for _, each := range told.Topics {
		send(client, each, told.PublicKey)
	}
	client.Close()
}

func send(client pulsar.Client, to topic, publicKey string) {
	options := pulsar.ProducerOptions{
		Topic:                   to.Topic,
		CompressionType:         codecs[to.Codec],
		DisableBatching:         to.Mode != "batched",
		BatchingMaxPublishDelay: time.Hour,
		EnableChunking:          to.Mode == "chunked",
	}
	if to.Encrypted {
		options.Encryption = &pulsar.ProducerEncryptionInfo{
			KeyReader: crypto.NewFileKeyReader(publicKey, ""), Keys: []string{"k"},
		}
	}
	producer, err := client.CreateProducer(options)
	check(err)
	for _, flushed := range to.Sends {
		for _, each := range flushed {
			made := pulsar.ProducerMessage{
				Payload: each.Value, Key: each.Key, OrderingKey: each.OrderingKey, Properties: each.Properties,
			}
			if each.EventTime != 0 {
				made.EventTime = time.UnixMilli(each.EventTime)
			}
			producer.SendAsync(context.Background(), &made, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				check(err)
			})
		}
		check(producer.FlushWithCtx(context.Background()))
	}
	producer.Close()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
