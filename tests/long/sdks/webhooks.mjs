// Verifies a message with the libraries that receivers use: webhooks.mjs FILE SECRET. Prints what they read as JSON.
import { readFile } from 'node:fs/promises';
import OpenAI from 'openai';
import { Webhook } from 'standardwebhooks';

const [path, secret] = process.argv.slice(2);
const { body, headers } = JSON.parse(await readFile(path, 'utf8'));
const read = new Webhook(secret).verify(body, headers);
const event = await new OpenAI({ apiKey: 'sk-any' }).webhooks.unwrap(body, headers, secret);
let isStrict = false;
try {
  new Webhook(secret).verify(`${body} `, headers);
} catch {
  isStrict = true;
}
console.log(JSON.stringify({ type: read.type, is_strict: isStrict, openai: event.object, id: event.data.id ?? null }));
