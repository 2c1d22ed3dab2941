// One agent of an official Node SDK: agents.mjs URL MODE. The last line says what came of it, as JSON.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [url, mode] = process.argv.slice(2);
const prompt = `a tide from Node, ${mode}`;
const asked = [];
const me = { name: 'agent', version: '1' };

async function connected() {
  if (mode === 'legacy') {
    const client = new OldClient(me);
    await client.connect(new OldTransport(new URL(url)));
    return client;
  }
  const capabilities = { elicitation: { form: {} } };
  const client = new Client(me, { capabilities, versionNegotiation: { mode: 'auto' } });
  client.setRequestHandler('elicitation/create', async ({ params }) => {
    asked.push(params.message);
    return { action: 'accept', content: {} };
  });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

const client = await connected();
const call = (name, args) => client.callTool({ name, arguments: args });
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const quoted = (await call('quote', { video: { prompt } })).structuredContent;
const order = mode === 'legacy' ? { prompt, quote: quoted.quote } : { prompt };
const bought = [];
for (let time = 0; time < 2; time += 1) bought.push((await call('create_video', order)).structuredContent);
const refused = await call('chat', { model: 'gpt-4o' });
const version = mode === 'legacy' ? null : client.getNegotiatedProtocolVersion();
await client.close();
console.log(JSON.stringify({
  version, tools, quoted, bought, asked, refused: refused.structuredContent, is_error: refused.isError,
}));
