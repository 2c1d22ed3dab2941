// One errand of the stock Node SDK: node.mjs BASE_URL ERRAND. The last line says what came of it, as JSON.
import OpenAI from 'openai';

const [baseURL, errand] = process.argv.slice(2);
const messages = [{ role: 'user', content: 'Hello' }];
const model = 'alpha-sonnet-4.5';
// The default is two retries: it stays.
const waits = errand.endsWith('-impatient') ? { timeout: 2000 } : {};
const client = new OpenAI({ baseURL, apiKey: 'sk-any', ...waits });

const errands = {
  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    const one = (await client.models.retrieve('eta-5-mini')).id;
    const none = await client.models.retrieve('gpt-4o').then(() => null, (error) => error.status);
    return { ids, one, none };
  },
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, temperature: 0.5 });
    if (answer.choices[0].finish_reason !== 'stop') throw new TypeError('no stop');
    return { text: answer.choices[0].message.content };
  },
  async stream() {
    const chunks = await client.chat.completions.create({ model, messages, stream: true });
    let text = '';
    for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? '';
    return { text };
  },
  async mistake() {
    return client.chat.completions.create({ model: 'gpt-4o', messages });
  },
  async order() {
    return { id: (await client.videos.create({ prompt: 'a tide' })).id };
  },
  async video() {
    const order = { prompt: 'a tide', model: 'video-c-2', seconds: '6', size: '1280x720' };
    const made = await client.videos.create(order);
    let now = made;
    while (now.status === 'queued' || now.status === 'in_progress') {
      await new Promise((wake) => setTimeout(wake, 500));
      now = await client.videos.retrieve(made.id);
    }
    let isListed = false;
    for await (const one of client.videos.list()) isListed ||= one.id === made.id;
    const content = Buffer.from(await (await client.videos.downloadContent(made.id)).arrayBuffer());
    return {
      status: now.status,
      seconds: made.seconds,
      is_listed: isListed && now.id === made.id,
      is_mp4: content.subarray(4, 8).toString() === 'ftyp',
      bytes: content.length,
    };
  },
};

const told = await errands[errand.replace(/-impatient$/, '')]().catch((error) => {
  if (!(error instanceof OpenAI.APIError)) throw error;
  const { status = null, message, code = null, param = null } = error;
  return { error: error.constructor.name, status, message, code, param, charged: error.error?.charged ?? null };
});
console.log(JSON.stringify(told));
