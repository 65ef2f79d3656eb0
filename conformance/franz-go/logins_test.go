// How the client logs in, by each mechanism: a record written and read. The suite says by its environment where.
// And what all clients of the tests need to log in (build.sh calls it).
package kgo

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type dial = func(ctx context.Context, network, host string) (net.Conn, error)

func overTLS(plain dial) dial {
	if testCert == nil {
		return plain
	}
	return func(ctx context.Context, network, host string) (net.Conn, error) {
		conn, err := plain(ctx, network, host)
		if err != nil {
			return nil, err
		}
		config := testCert.Clone()
		config.ServerName, _, _ = net.SplitHostPort(host)
		return tls.Client(conn, config), nil
	}
}

func loggedIn() []Opt {
	opts := []Opt{Dialer(overTLS(new(net.Dialer).DialContext))}
	if saslScram != nil {
		opts = append(opts, SASL(saslScram))
	}
	return opts
}

func TestLogsIn(t *testing.T) {
	user, password := os.Getenv("LOGINS_USER"), os.Getenv("LOGINS_PASSWORD")
	if user == "" {
		t.Skip("this server asks for no login")
	}
	auth := scram.Auth{User: user, Pass: password}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": auth.AsSha256Mechanism(),
		"SCRAM-SHA-512": auth.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: os.Getenv("LOGINS_TOKEN")}.AsMechanism(),
		"mTLS":          nil,
	}
	topic, cleanup := tmpTopicPartitions(t, 1)
	defer cleanup()
	for name, mechanism := range mechanisms {
		t.Run(name, func(t *testing.T) {
			config := testCert.Clone()
			opts := []Opt{getSeedBrokers(), DialTLSConfig(config), DefaultProduceTopic(topic), ConsumeTopics(topic)}
			if mechanism != nil {
				opts = append(opts, SASL(mechanism))
			} else {
				path := os.Getenv("LOGINS_CERTIFICATE")
				certificate, err := tls.LoadX509KeyPair(path, path)
				if err != nil {
					t.Fatal(err)
				}
				config.Certificates = []tls.Certificate{certificate}
				opts = append(opts, SeedBrokers(strings.Split(os.Getenv("LOGINS_SEEDS_OF_CERTIFICATE"), ",")...))
			}
			client, err := NewClient(append(opts, ConsumeResetOffset(NewOffset().AtStart()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := client.ProduceSync(ctx, StringRecord("hello")).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if fetches := client.PollFetches(ctx); fetches.Err() != nil || string(fetches.Records()[0].Value) != "hello" {
				t.Fatal(fetches.Err())
			}
		})
	}
}
