// Consumes as a member of a group: what tests/compat/test_consumer_groups.py has kafkajs do.
//
// Arguments: bootstrap, topic, group, number of records. Commits each record and then prints its
// partition and offset, with a tab between; leaves when all have come.
const { Kafka, logLevel } = require("kafkajs");

const PATIENCE_MS = 120000;

async function main([bootstrap, topic, groupId, count]) {
  const kafka = new Kafka({ clientId: "plog-test", brokers: [bootstrap], logLevel: logLevel.WARN });
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let read = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${read} of ${count} records came`)), PATIENCE_MS).unref();
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          const offset = String(BigInt(message.offset) + 1n);
          await consumer.commitOffsets([{ topic, partition, offset }]);
          console.log(`${partition}\t${message.offset}`);
          if (++read === Number(count)) resolve();
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
