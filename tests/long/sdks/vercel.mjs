// One errand of Vercel's SDK: vercel.mjs BASE_URL ERRAND. The last line says what came of it, as JSON.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';

const [baseURL, errand] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: 'tollgate', baseURL, apiKey: 'sk-any' });
const isImpatient = errand.endsWith('-impatient');
// The default is two retries: it stays. What was aborted is not among them.
const options = (id) => ({
  model: provider(id),
  prompt: 'Hello',
  ...(isImpatient ? { abortSignal: AbortSignal.timeout(2000) } : {}),
});

const errands = {
  async chat() {
    return { text: (await generateText(options('alpha-sonnet-4.5'))).text };
  },
  async stream() {
    let failure;
    const result = streamText({
      ...options('alpha-sonnet-4.5'),
      onError: ({ error }) => { failure = error; },
      onAbort: () => { failure = new DOMException('aborted', 'AbortError'); },
    });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    if (failure) throw failure;
    return { text };
  },
  async mistake() {
    return generateText(options('gpt-4o'));
  },
};

const describe = (error) => {
  const last = error.lastError ?? error;
  return { error: String(error.name ?? 'error'), status: last.statusCode ?? null, message: String(last.message ?? last) };
};
const run = () => errands[errand.replace(/-impatient$/, '')]().catch(describe);

let told = await run();
// Who is impatient asks again, as a person does.
for (let turn = 0; isImpatient && told.error && turn < 4; turn += 1) told = await run();
console.log(JSON.stringify(told));
