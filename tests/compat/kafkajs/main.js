// What tests/compat/test_other_clients.py has kafkajs do: make a topic, write records, ask for offsets.
//
// Arguments: bootstrap, topic, number of records, codec (none, gzip). Its consumers are members of
// groups, so that reading is group.js's. Prints the base offsets of its batches, then the topic's
// low and high offset.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

async function main([bootstrap, topic, count, codec]) {
  const kafka = new Kafka({
    clientId: "plog-test",
    brokers: bootstrap.split(","),
    logLevel: logLevel.WARN,
  });
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({
    topics: [{ topic, numPartitions: 2, configEntries: [{ name: "retention.ms", value: "7200000" }] }],
  });
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  for (let n = 0; n < Number(count); n++) {
    const [sent] = await producer.send({
      topic,
      acks: -1,
      compression: codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None,
      messages: [
        {
          partition: 0,
          key: `k${n}`,
          value: `value ${n}`,
          headers: { n: String(n), twice: ["a", "b"], bytes: Buffer.from([0, 255]) },
        },
      ],
    });
    console.log(sent.baseOffset);
  }
  await producer.disconnect();
  const offsets = await admin.fetchTopicOffsets(topic);
  const { low, high } = offsets.find(({ partition }) => partition === 0);
  console.log(low);
  console.log(high);
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
  console.log(topics[0].partitions.length);
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "2" }] });
  await admin.disconnect();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
