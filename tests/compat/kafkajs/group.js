// Consumes as a member of a group: what tests/compat/test_consumer_groups.py has kafkajs do.
//
// Arguments: bootstrap, topic, group, number of records. Commits each record and then prints its
// partition, offset, key, value and headers, with tabs between; leaves when all have come.
const { Kafka, logLevel } = require("kafkajs");

const PATIENCE_MS = 120000;

const shown = (bytes) => (bytes === null ? "NULL" : bytes.toString());

// A name that comes twice has a list of values.
const shownHeaders = (headers) =>
  Object.entries(headers)
    .flatMap(([name, values]) => [values].flat().map((value) => `${name}=${shown(value)}`))
    .join(",");

async function main([bootstrap, topic, groupId, count]) {
  const kafka = new Kafka({ clientId: "plog-test", brokers: bootstrap.split(","), logLevel: logLevel.WARN });
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
          const { key, value, headers } = message;
          const told = [partition, message.offset, shown(key), shown(value), shownHeaders(headers)];
          console.log(told.join("\t"));
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
