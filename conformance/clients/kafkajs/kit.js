// What the cases of kafkajs share: the protocol of ../../protocol.py, declaring and running cases (three at once),
// topics, a reader, and rawFetch(), which looks at stored batches and shares no code with kafkajs.
'use strict'

const assert = require('node:assert/strict')
const crypto = require('node:crypto')
const fs = require('node:fs')
const net = require('node:net')
const { setTimeout: sleep } = require('node:timers/promises')
const { parseArgs } = require('node:util')

const CLIENT = 'kafkajs'
const emit = message => process.stdout.write(JSON.stringify({ client: CLIENT, ...message }) + '\n')

let kafkajs
try {
  kafkajs = require('kafkajs')
} catch (error) {
  emit({ missing: `not installed: ${error.message.split('\n')[0]}` })
  process.exit(0)
}
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = kafkajs

const lz4 = require('lz4js')
const { hash: xxh32 } = require('lz4js/xxh32.js')
const zstd = require('@bokuweb/zstd-wasm')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => {
    const frame = Buffer.from(lz4.compress(encoder.buffer))
    frame[4] |= 0x20 // its one block depends on no other; Kafka insists on hearing that
    frame[6] = (xxh32(0, frame, 4, 2) >>> 8) & 0xff
    return frame
  },
  decompress: async buffer => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})
const CODECS = ['none', 'gzip', 'snappy', 'lz4', 'zstd'] // their numbers on the wire, too

const { values: options } = parseArgs({
  options: {
    bootstrap: { type: 'string', default: '127.0.0.1:9092' },
    security: { type: 'string', default: '' },
    fast: { type: 'boolean', default: false },
    list: { type: 'boolean', default: false },
    case: { type: 'string', multiple: true, default: [] },
    match: { type: 'string', default: '' },
  },
})
const security = options.security ? JSON.parse(fs.readFileSync(options.security)) : null // ../../security.py
const login = security && {
  ssl: { ca: [fs.readFileSync(security.ca)] },
  sasl: { mechanism: security.mechanism.toLowerCase(), username: security.user, password: security.password },
}
const kafka = new Kafka({
  ...login,
  clientId: 'conformance',
  brokers: [options.bootstrap],
  logLevel: logLevel.NOTHING,
  retry: { retries: 4, initialRetryTime: 100 },
})

// What cases use

const cases = []
const define = (name, { slow = false, limit = 30, alone = false } = {}, body) =>
  cases.push({ name, slow, limit, alone, body })
const test = (name, ...rest) => define(name, rest.length > 1 ? rest[0] : {}, rest[rest.length - 1])

const unique = hint => `conf-${CLIENT}-${hint}-${crypto.randomBytes(4).toString('hex')}`
const made = []
const topicName = (hint = 't') => {
  const topic = unique(hint)
  made.push(topic)
  return topic
}

const kit = { admin: null }
const makeTopic = async (numPartitions = 1, configs = {}) => {
  const topic = topicName()
  const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
  assert.equal(await kit.admin.createTopics({ topics: [{ topic, numPartitions, configEntries }] }), true)
  // kafkajs does not retry a topic that is not known yet; on a busy server that takes a moment.
  await eventually(() => kit.admin.fetchTopicMetadata({ topics: [topic] }))
  return topic
}

const withProducer = async (config, body) => {
  const producer = kafka.producer({ allowAutoTopicCreation: true, ...config })
  await producer.connect()
  try {
    return await body(producer)
  } finally {
    await producer.disconnect()
  }
}

// An admin client of the case's own. The shared one forgets the leaders of all other topics whenever any case asks it
// for the metadata of one topic (kafkajs' fetchTopicMetadata), so what needs leaders twice in a row cannot use that.
const withAdmin = async body => {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await body(admin)
  } finally {
    await admin.disconnect()
  }
}

const fill = (topic, count, { partition = 0, start = 0 } = {}) =>
  withProducer({}, producer =>
    producer.send({
      topic,
      messages: Array.from({ length: count }, (_, i) => ({ partition, key: `k${start + i}`, value: `v${start + i}` })),
    })
  )

// A consumer that runs and keeps what it gets.
class Reader {
  static async start(topics, config = {}, { seek, subscribe = {}, run = {} } = {}) {
    const reader = new Reader()
    reader.records = []
    reader.joins = []
    reader.consumer = kafka.consumer({
      groupId: unique('g'),
      sessionTimeout: 10000,
      heartbeatInterval: 200,
      rebalanceTimeout: 5000,
      maxWaitTimeInMs: 500,
      ...config,
    })
    reader.consumer.on(reader.consumer.events.GROUP_JOIN, event => reader.joins.push(event.payload))
    await reader.consumer.connect()
    await reader.consumer.subscribe({ topics: [].concat(topics), fromBeginning: true, ...subscribe })
    await reader.consumer.run({
      eachMessage: async ({ topic, partition, message }) => {
        reader.records.push({ topic, partition, message, at: performance.now() })
      },
      ...run,
    })
    if (seek) seek(reader.consumer)
    return reader
  }

  get values() {
    return this.records.map(({ message }) => message.value && message.value.toString())
  }

  get partitions() {
    const last = this.joins.at(-1)
    return last ? Object.values(last.memberAssignment).flat() : []
  }

  async take(count, seconds = 15) {
    await eventually(() => this.records.length >= count, seconds).catch(() => {})
    assert.equal(this.records.length, count, `${this.records.length} records consumed, wanted ${count}`)
    return this.records
  }

  stop() {
    return this.consumer.disconnect()
  }
}

const eventually = async (check, seconds = 10) => {
  const end = performance.now() + seconds * 1000
  for (;;) {
    let failure
    try {
      const value = await check()
      if (value) return value
      failure = new assert.AssertionError({ message: `still ${JSON.stringify(value)} after ${seconds} s` })
    } catch (error) {
      failure = error
    }
    if (performance.now() > end) throw failure
    await sleep(50)
  }
}

const refused = async (type, promise) => {
  let answer
  try {
    answer = await promise
  } catch (error) {
    const types = [error.type, error.cause?.type, ...(error.errors ?? []).map(e => e.type), ...(error.groups ?? []).map(g => g.error?.type)]
    assert.ok(types.includes(type), `${types.filter(Boolean)} (${error.message}) instead of ${type}`)
    return
  }
  assert.fail(`no ${type} but ${JSON.stringify(answer)}`)
}

// Fetch version 11 by hand: the attributes, producer ids and counts of the stored batches.
const rawFetch = (topic, partition = 0, offset = 0n) =>
  new Promise((resolve, reject) => {
    const string = text => {
      const raw = Buffer.from(text)
      const size = Buffer.alloc(2)
      size.writeInt16BE(raw.length)
      return Buffer.concat([size, raw])
    }
    const ints = (...numbers) => {
      const out = Buffer.alloc(numbers.length * 4)
      numbers.forEach((n, i) => out.writeInt32BE(n, i * 4))
      return out
    }
    const long = number => {
      const out = Buffer.alloc(8)
      out.writeBigInt64BE(number)
      return out
    }
    const frame = Buffer.concat([
      Buffer.from([0, 1, 0, 11]), ints(1), string('rawfetch'),
      ints(-1, 500, 1, 8 << 20), Buffer.from([0]), ints(0, -1, 1), string(topic),
      ints(1, partition, -1), long(offset), long(-1n), ints(8 << 20, 0), string(''),
    ])
    const [, host, port] = (security ? security.plain : options.bootstrap).match(/^(.*):(\d+)$/)
    const socket = net.connect({ host, port: Number(port) })
    const parts = []
    socket.on('error', reject)
    socket.on('connect', () => socket.write(Buffer.concat([ints(frame.length), frame])))
    socket.on('data', data => {
      parts.push(data)
      const all = Buffer.concat(parts)
      if (all.length < 4 || all.length < 4 + all.readInt32BE(0)) return
      socket.destroy()
      // size, correlation, throttle, error, session, topics; then the topic and its partition
      let at = 4 + 4 + 4 + 2 + 4 + 4
      at += 2 + all.readInt16BE(at) + 4
      const error = all.readInt16BE(at + 4)
      if (error) return reject(new Error(`Fetch answered error code ${error}`))
      at += 4 + 2 + 24
      at += 4 + Math.max(all.readInt32BE(at), 0) * 16 + 4
      const end = at + 4 + all.readInt32BE(at)
      const batches = []
      for (at += 4; at + 61 <= end; at += 12 + all.readInt32BE(at + 8)) {
        batches.push({
          baseOffset: Number(all.readBigInt64BE(at)),
          codec: CODECS[all.readInt16BE(at + 21) & 7],
          producerId: Number(all.readBigInt64BE(at + 43)),
          baseSequence: all.readInt32BE(at + 53),
          count: all.readInt32BE(at + 57),
        })
      }
      resolve(batches)
    })
  })

// Running them

const one = async ({ name, limit, body }) => {
  emit({ case: name, begin: true })
  const begun = performance.now()
  let ok = true
  let detail = ''
  const timer = new AbortController()
  const late = sleep(limit * 1000, null, { signal: timer.signal }).then(
    () => Promise.reject(new Error(`no end after ${limit} s`)),
    () => {}
  )
  try {
    await Promise.race([body(), late])
  } catch (error) {
    ok = false
    const where = /suite\.js:\d+/.exec((error.stack ?? '').split('\n').filter(l => !l.includes('eventually')).slice(1).join('\n'))
    detail = `${error.name}: ${error.message}`.replace(/\s+/g, ' ').slice(0, 600) + (where ? ` (${where[0]})` : '')
  } finally {
    timer.abort()
  }
  emit({ case: name, ok, detail, seconds: Math.round(performance.now() - begun) / 1000 })
}

const main = async () => {
  const chosen = cases.filter(
    c => (!options.fast || !c.slow) && (!options.case.length || options.case.includes(c.name)) && new RegExp(options.match).test(c.name)
  )
  emit({ version: require('kafkajs/package.json').version })
  emit({ plan: chosen.map(c => c.name) })
  if (options.list) return
  await zstd.init()
  kit.admin = kafka.admin()
  await kit.admin.connect()
  const together = chosen.filter(c => !c.alone)
  await Promise.all([0, 1, 2].map(async () => {
    while (together.length) await one(together.shift())
  }))
  for (const c of chosen.filter(c => c.alone)) await one(c)
  const there = new Set(await kit.admin.listTopics())
  const mine = made.filter(topic => there.has(topic))
  if (mine.length) await kit.admin.deleteTopics({ topics: mine })
}

// A case that ran out of time leaves a client behind whose errors nobody awaits.
process.on('unhandledRejection', error => console.error(error))
const start = () =>
  main().then(
    () => process.exit(0),
    error => {
      console.error(error)
      process.exit(1)
    }
  )

module.exports = {
  kafkajs, kafka, kit, test, start, topicName, makeTopic, unique, withProducer, withAdmin, fill, Reader, eventually, refused,
  rawFetch, CODECS,
}
