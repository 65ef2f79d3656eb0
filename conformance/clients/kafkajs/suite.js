// kafkajs: a client without librdkafka and without Java, with request versions of around Kafka 2.4
// (Produce 7, Fetch 11, Metadata 6, FindCoordinator 2, JoinGroup 5).
'use strict'

const assert = require('node:assert/strict')
const { setTimeout: sleep } = require('node:timers/promises')

const {
  kafkajs, kafka, kit, test, start, topicName, makeTopic, unique, withProducer, withAdmin, fill, Reader, eventually, refused,
  rawFetch, CODECS,
} = require('./kit.js')
const { ConfigResourceTypes, AssignerProtocol } = kafkajs

// Producer and consumer

for (const [number, codec] of CODECS.entries()) {
  for (const acks of [0, 1, -1]) {
    const slow = acks !== -1 && codec !== 'gzip'
    test(`produce_consume_and_stored_codec[codec=${codec},acks=${acks}]`, { slow }, async () => {
      const topic = await makeTopic()
      const wanted = Array.from({ length: 50 }, (_, i) => `${i} ${'abcdefgh'.repeat(12)}`)
      await withProducer({}, async producer => {
        const messages = wanted.map(value => ({ partition: 0, value }))
        await producer.send({ topic, acks, compression: number, messages })
        await eventually(async () => (await rawFetch(topic)).reduce((n, b) => n + b.count, 0) === 50)
      })
      const reader = await Reader.start(topic)
      await reader.take(50)
      await reader.stop()
      assert.deepEqual(reader.values, wanted)
      assert.deepEqual(reader.records.map(r => r.message.offset), wanted.map((_, i) => String(i)))
      assert.deepEqual([...new Set((await rawFetch(topic)).map(b => b.codec))], [codec])
    })
  }
}

test('records_keep_null_and_empty_and_binary_keys_values_headers', async () => {
  const topic = await makeTopic()
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i))
  const wanted = [
    [null, Buffer.from('no key'), {}],
    [Buffer.alloc(0), Buffer.from('empty key'), {}],
    [Buffer.from('null value'), null, {}],
    [Buffer.from('empty value'), Buffer.alloc(0), {}],
    [bytes, bytes, { a: [Buffer.from('1'), Buffer.from('2')], b: bytes, empty: Buffer.alloc(0) }],
  ]
  await withProducer({}, producer =>
    producer.send({ topic, messages: wanted.map(([key, value, headers]) => ({ partition: 0, key, value, headers })) })
  )
  const reader = await Reader.start(topic)
  const got = (await reader.take(wanted.length)).map(({ message: m }) => [m.key, m.value, m.headers])
  await reader.stop()
  assert.deepEqual(got, wanted)
})

test('timestamps_of_the_producer_are_kept', async () => {
  const topic = await makeTopic()
  const now = Date.now()
  const stamps = [now - 60000, now, now - 3600000].map(String)
  await withProducer({}, producer =>
    producer.send({ topic, messages: stamps.map(timestamp => ({ partition: 0, value: 'x', timestamp })) })
  )
  const reader = await Reader.start(topic)
  assert.deepEqual((await reader.take(3)).map(r => r.message.timestamp), stamps)
  await reader.stop()
})

test('message_of_900_kb_round_trips', async () => {
  const topic = await makeTopic()
  const value = Buffer.from(Array.from({ length: 900000 }, (_, i) => i % 251))
  await withProducer({}, producer => producer.send({ topic, messages: [{ partition: 0, value }] }))
  const reader = await Reader.start(topic)
  assert.ok(value.equals((await reader.take(1))[0].message.value), 'the value changed')
  await reader.stop()
})

test('too_large_a_message_is_message_too_large', async () => {
  const topic = await makeTopic()
  await withProducer({ retry: { retries: 0 } }, async producer => {
    const value = Buffer.alloc(3 << 20)
    await refused('MESSAGE_TOO_LARGE', producer.send({ topic, messages: [{ partition: 0, value }] }))
    const sent = await producer.send({ topic, messages: [{ partition: 0, value: 'small' }] })
    assert.equal(sent[0].baseOffset, '0')
  })
})

test('idempotent_producer_is_ordered_without_holes', async () => {
  const topic = await makeTopic()
  await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async producer => {
    for (let i = 0; i < 50; i++) await producer.send({ topic, acks: -1, messages: [0, 1].map(n => ({ partition: 0, value: `${i}-${n}` })) })
  })
  const batches = await rawFetch(topic)
  assert.ok(batches.every(b => b.producerId === batches[0].producerId && b.producerId >= 0), 'producer ids')
  assert.deepEqual(batches.map(b => [b.baseOffset, b.baseSequence]), batches.map((_, i) => [i * 2, i * 2]))
})

test('transaction_commits_and_aborts', async () => {
  const topic = await makeTopic()
  await withProducer({ idempotent: true, maxInFlightRequests: 1, transactionalId: unique('tx'), retry: { retries: 1 } }, async producer => {
    const first = await producer.transaction()
    await first.send({ topic, messages: [{ partition: 0, value: 'kept' }] })
    await first.commit()
    const second = await producer.transaction()
    await second.send({ topic, messages: [{ partition: 0, value: 'dropped' }] })
    await second.abort()
  })
  const reader = await Reader.start(topic, { readUncommitted: false })
  await reader.take(1)
  assert.deepEqual(reader.values, ['kept'])
  await reader.stop()
})

test('consume_from_end_and_seek_to_offset', async () => {
  const topic = await makeTopic()
  await fill(topic, 10)
  const late = await Reader.start(topic, {}, { subscribe: { fromBeginning: false } })
  await eventually(() => late.partitions.length === 1)
  await sleep(2000) // by then it knows where the log ends
  await fill(topic, 1, { start: 10 })
  await late.take(1)
  assert.deepEqual(late.values, ['v10'])
  await late.stop()
  const sought = await Reader.start(topic, {}, { seek: c => c.seek({ topic, partition: 0, offset: '7' }) })
  await eventually(() => sought.values.at(-1) === 'v10')
  assert.deepEqual(sought.values.slice(-4), ['v7', 'v8', 'v9', 'v10'])
  await sought.stop()
})

test('offset_out_of_range_is_reset', async () => {
  const topic = await makeTopic()
  await fill(topic, 5)
  const reader = await Reader.start(topic, {}, { seek: c => c.seek({ topic, partition: 0, offset: '1000' }) })
  await eventually(() => reader.values.slice(-5).join() === 'v0,v1,v2,v3,v4')
  await reader.stop()
})

test('a_waiting_consumer_is_woken_at_once', { alone: true }, async () => {
  const topic = await makeTopic()
  const reader = await Reader.start(topic, { maxWaitTimeInMs: 3000 })
  await withProducer({}, async producer => {
    await producer.send({ topic, messages: [{ partition: 0, value: 'first' }] })
    await reader.take(1)
    const took = []
    for (let i = 0; i < 2; i++) {
      await sleep(500)
      await producer.send({ topic, messages: [{ partition: 0, value: 'next' }] })
      const acknowledged = performance.now()
      await reader.take(i + 2)
      took.push(reader.records.at(-1).at - acknowledged)
    }
    assert.ok(Math.min(...took) < 500, `seen ${took} ms after the acknowledgements; a busy machine may delay one of them`)
  })
  await reader.stop()
})

test('backlog_of_5_mb_through_small_fetches', async () => {
  const topic = await makeTopic(2)
  await withProducer({}, async producer => {
    for (let round = 0; round < 50; round++) {
      const messages = Array.from({ length: 100 }, (_, i) => ({ partition: i % 2, value: String(round * 100 + i).padEnd(1024, 'x') }))
      await producer.send({ topic, messages })
    }
  })
  const reader = await Reader.start(topic, { maxBytesPerPartition: 100000, maxBytes: 150000 })
  await reader.take(5000, 25)
  await reader.stop()
  for (const partition of [0, 1]) {
    const got = reader.records.filter(r => r.partition === partition).map(r => parseInt(r.message.value, 10))
    assert.deepEqual(got, Array.from({ length: 2500 }, (_, i) => i * 2 + partition))
  }
})

test('produce_creates_a_missing_topic', async () => {
  const topic = topicName('auto')
  const sent = await withProducer({}, producer => producer.send({ topic, messages: [{ value: 'x' }] }))
  assert.equal(sent[0].baseOffset, '0')
})

test('asking_for_a_missing_topic_need_not_create_it', async () => {
  const topic = topicName('absent')
  const producer = kafka.producer({ allowAutoTopicCreation: false, retry: { retries: 1 } })
  await producer.connect()
  await refused('UNKNOWN_TOPIC_OR_PARTITION', producer.send({ topic, messages: [{ value: 'x' }] }))
  await producer.disconnect()
  assert.ok(!(await kit.admin.listTopics()).includes(topic), 'the topic was created')
})

// Groups

test('group_resumes_from_its_commit', async () => {
  const topic = await makeTopic()
  const groupId = unique('g')
  await fill(topic, 5)
  const first = await Reader.start(topic, { groupId })
  await first.take(5)
  await first.stop()
  const [found] = await kit.admin.fetchOffsets({ groupId, topics: [topic] })
  assert.deepEqual(found.partitions.map(p => p.offset), ['5'])
  await fill(topic, 2, { start: 5 })
  const second = await Reader.start(topic, { groupId })
  await second.take(2)
  assert.deepEqual(second.values, ['v5', 'v6'])
  await second.stop()
})

test('commit_keeps_offset_and_metadata', async () => {
  const topic = await makeTopic()
  const groupId = unique('g')
  await fill(topic, 5)
  const reader = await Reader.start(topic, { groupId }, { run: { autoCommit: false } })
  await reader.take(5)
  await reader.consumer.commitOffsets([{ topic, partition: 0, offset: '3', metadata: 'why' }])
  const [found] = await kit.admin.fetchOffsets({ groupId, topics: [topic] })
  assert.deepEqual(found.partitions.map(({ offset, metadata }) => [offset, metadata]), [['3', 'why']])
  await reader.stop()
})

test('pause_and_resume', async () => {
  const topic = await makeTopic(2)
  const reader = await Reader.start(topic)
  await eventually(() => reader.partitions.length === 2)
  reader.consumer.pause([{ topic, partitions: [0] }])
  await fill(topic, 2, { partition: 0 })
  await fill(topic, 2, { partition: 1, start: 10 })
  await reader.take(2)
  assert.deepEqual(reader.values, ['v10', 'v11'])
  reader.consumer.resume([{ topic, partitions: [0] }])
  await reader.take(4)
  assert.deepEqual(reader.values.slice(2), ['v0', 'v1'])
  await reader.stop()
})

test('pattern_subscription', async () => {
  const topic = await makeTopic()
  await fill(topic, 2)
  const reader = await Reader.start(new RegExp(`^${topic.slice(0, -1)}.$`))
  await reader.take(2)
  await reader.stop()
})

test('group_rebalances_one_two_three_and_back', { limit: 60 }, async () => {
  const topic = await makeTopic(6)
  const groupId = unique('g')
  const members = []
  const settled = () => {
    const all = members.flatMap(m => m.partitions)
    const sizes = members.map(m => m.partitions.length)
    return all.length === 6 && new Set(all).size === 6 && Math.max(...sizes) - Math.min(...sizes) <= 1
  }
  let sent = 0
  const more = async () => {
    await withProducer({}, producer =>
      producer.send({ topic, messages: Array.from({ length: 12 }, (_, i) => ({ partition: i % 6, value: String(sent + i) })) })
    )
    sent += 12
  }
  for (let i = 0; i < 3; i++) {
    members.push(await Reader.start(topic, { groupId }))
    await eventually(settled, 20)
    await more()
  }
  const gone = []
  for (let i = 0; i < 2; i++) {
    gone.push(members.pop())
    await gone.at(-1).stop()
    await more()
    await eventually(settled, 20)
  }
  await eventually(() => new Set([...members, ...gone].flatMap(m => m.values)).size === sent, 15)
  await members[0].stop()
})

test('many_producers_and_a_group_of_consumers_lose_nothing', { limit: 45 }, async () => {
  const topic = await makeTopic(4)
  const groupId = unique('g')
  const members = await Promise.all([0, 1].map(() => Reader.start(topic, { groupId })))
  await Promise.all(
    [0, 1, 2, 3].map(number =>
      withProducer({}, async producer => {
        for (let i = 0; i < 20; i++) {
          await producer.send({ topic, messages: Array.from({ length: 25 }, (_, n) => ({ key: String(number), value: `${number}-${i * 25 + n}` })) })
        }
      })
    )
  )
  await eventually(() => new Set(members.flatMap(m => m.values)).size === 2000, 25)
  await Promise.all(members.map(m => m.stop()))
})

// The admin client

test('create_topic_refusals', async () => {
  const topic = await makeTopic()
  assert.equal(await kit.admin.createTopics({ topics: [{ topic }] }), false) // kafkajs' word for "is there already"
  const create = t => kit.admin.createTopics({ topics: [t], waitForLeaders: false })
  await refused('INVALID_TOPIC_EXCEPTION', create({ topic: 'a/b' }))
  await refused('INVALID_PARTITIONS', create({ topic: topicName(), numPartitions: 0 }))
  await refused('INVALID_REPLICATION_FACTOR', create({ topic: topicName(), numPartitions: 1, replicationFactor: 0 }))
  await refused('INVALID_CONFIG', create({ topic: topicName(), configEntries: [{ name: 'retention.ms', value: 'soon' }] }))
})

test('create_topic_with_replication_factor[factor=3]', async () => {
  const topic = topicName()
  assert.equal(await kit.admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 3 }] }), true)
})

test('delete_topic', async () => {
  const topic = await makeTopic()
  await kit.admin.deleteTopics({ topics: [topic] })
  await eventually(async () => !(await kit.admin.listTopics()).includes(topic))
  await refused('UNKNOWN_TOPIC_OR_PARTITION', kit.admin.deleteTopics({ topics: [topic] }))
})

test('create_partitions_grows_only', async () => {
  const topic = await makeTopic(2)
  await kit.admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  await eventually(async () => (await kit.admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 4)
  await refused('INVALID_PARTITIONS', kit.admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] }))
})

test('delete_records_moves_the_log_start', async () => {
  const topic = await makeTopic()
  await fill(topic, 10)
  await withAdmin(async admin => {
    await admin.fetchTopicOffsets(topic) // kafkajs finds no leader of a topic that it never looked at
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
    const [found] = await admin.fetchTopicOffsets(topic)
    assert.deepEqual([found.low, found.high], ['4', '10'])
  })
})

test('offsets_by_timestamp', async () => {
  const topic = await makeTopic()
  const base = Date.now() - 60000
  await withProducer({}, producer =>
    producer.send({ topic, messages: [0, 1000, 2000].map(t => ({ partition: 0, value: 'x', timestamp: String(base + t) })) })
  )
  await withAdmin(async admin => {
    const at = async stamp => (await admin.fetchTopicOffsetsByTimestamp(topic, stamp))[0].offset
    assert.deepEqual([await at(base), await at(base + 1), await at(base + 2000)], ['0', '1', '2'])
    assert.equal(await at(base + 2001), '3') // kafkajs turns "beyond the end" into the end
  })
})

test('alter_configs_replaces_and_reads_back', async () => {
  const topic = await makeTopic(1, { 'retention.ms': '1000000', 'segment.bytes': '2000000' })
  const read = async () => {
    const { resources } = await kit.admin.describeConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }] })
    return Object.fromEntries(resources[0].configEntries.map(e => [e.configName, e.configValue]))
  }
  assert.equal((await read())['retention.ms'], '1000000')
  const configEntries = [{ name: 'retention.ms', value: '5000000' }]
  await kit.admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }] })
  await eventually(async () => (await read())['retention.ms'] === '5000000')
  assert.equal((await read())['segment.bytes'], '1073741824')
})

test('describe_list_and_delete_groups', async () => {
  const topic = await makeTopic()
  const groupId = unique('g')
  const reader = await Reader.start(topic, { groupId })
  await eventually(() => reader.partitions.length === 1)
  const { groups } = await kit.admin.describeGroups([groupId])
  assert.deepEqual([groups[0].state, groups[0].protocol, groups[0].members.length], ['Stable', 'RoundRobinAssigner', 1])
  const assignment = AssignerProtocol.MemberAssignment.decode(groups[0].members[0].memberAssignment)
  assert.deepEqual(assignment.assignment, { [topic]: [0] })
  assert.ok((await kit.admin.listGroups()).groups.some(g => g.groupId === groupId), 'not listed')
  await refused('NON_EMPTY_GROUP', kit.admin.deleteGroups([groupId]))
  await reader.stop()
  await kit.admin.deleteGroups([groupId])
  assert.ok(!(await kit.admin.listGroups()).groups.some(g => g.groupId === groupId), 'still listed')
})

// kafkajs joins the group to set an offset: 15 s on every server.
test('set_and_reset_group_offsets', { slow: true }, async () => {
  const topic = await makeTopic()
  const groupId = unique('g')
  await fill(topic, 5)
  await withAdmin(async admin => {
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '3' }] })
    assert.equal((await admin.fetchOffsets({ groupId, topics: [topic] }))[0].partitions[0].offset, '3')
    await admin.resetOffsets({ groupId, topic, earliest: true })
    const [found] = await admin.fetchOffsets({ groupId, topics: [topic], resolveOffsets: true })
    assert.equal(found.partitions[0].offset, '0')
  })
})

test('describe_cluster', async () => {
  const { brokers, controller, clusterId } = await kit.admin.describeCluster()
  assert.equal(clusterId.length, 22)
  assert.ok(brokers.some(b => b.nodeId === controller), 'the controller is no broker')
})

start()
