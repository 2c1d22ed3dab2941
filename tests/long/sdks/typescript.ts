// A program that uses everything that `client.d.ts` exports. It is compiled, never run: what has to compile does, and
// each `@ts-expect-error` marks what must not.
import * as client from './client.js';
import { RETRIES, TollgateError, callerName, createClient, newKey } from './client.js';
import type {
  AskOptions, Budget, BuyOptions, Catalog, Charged, ChatModel, ChatReply, ChatRequest, Client, ClientOptions, Fault, Job, JobNews, Jobs, Known, Me,
  Message, Paid, Priced, ReadOptions, TollgateElement, Usage, VideoAccepted, VideoModel, VideoRequest,
} from './client.js';

/** The values that the module exports: no more and no fewer. */
export const EXPORTS: Record<keyof typeof client, true> = { RETRIES: true, TollgateError: true, callerName: true, createClient: true, newKey: true };

const plain: Client = createClient();
const options: ClientOptions = { baseUrl: new URL('https://tollgate.example'), token: async () => null, attempts: 3, patience: 10, fetch: globalThis.fetch };
const tollgate = createClient(options);
createClient({ baseUrl: 'https://tollgate.example', token: 'tg_token' });
createClient({ token: null });
createClient({ ...RETRIES.page });
// @ts-expect-error there is no such option
createClient({ retries: 3 });
// @ts-expect-error a token is a text
createClient({ token: 7 });
// @ts-expect-error an answer is no token
createClient({ token: () => fetch('/session/token') });

const message: Message = { role: 'user', content: 'Hello' };
const request: ChatRequest = { model: 'eta-5-mini', messages: [message] };
// @ts-expect-error nobody has this role
const wrongRole: Message = { role: 'tool', content: 'Hello' };
// @ts-expect-error messages are missing
const tooLittle: ChatRequest = { model: 'eta-5-mini' };

export async function chats(signal: AbortSignal, kept: Known | null): Promise<string> {
  const reply: ChatReply = await tollgate.chat(request);
  const paid: Paid = reply;
  const cost: string | null = paid.cost;
  const raw: unknown = reply.raw;
  // @ts-expect-error nobody knows what the gateway's body has
  reply.raw.choices;
  // @ts-expect-error a free reply has no cost
  cost.length;
  const settled: BuyOptions = {
    idempotencyKey: newKey(), sentBefore: false, known: kept, signal,
    onSend: async ({ caller, ledger, at, seconds, mayBuyAgain }) => keep({ caller, ledger, at, seconds, mayBuyAgain }),
    onRetry: (reason, seconds) => console.log(reason.code, reason.charged, seconds.toFixed(0)),
  };
  await plain.chat(request, settled);
  await plain.chat(request, { known: { ...(kept ?? never()), ledger: null } });
  // @ts-expect-error a key is a text
  await plain.chat(request, { idempotencyKey: 7 });
  // @ts-expect-error known is what onSend told
  await plain.chat(request, { known: { ledger: 'one' } });
  // @ts-expect-error a chat needs its request
  await plain.chat();
  return [reply.message.content, reply.idempotencyKey, reply.replayed ? 'again' : 'new', cost ?? '', typeof raw].join();
}

function keep(known: Known): void {
  // @ts-expect-error a waived purchase names no ledger
  known.ledger.length;
  console.log(known.ledger ?? 'any');
}

function never(): never {
  throw new TollgateError({ code: 'unexpected', charged: 'no', detail: 'not here' });
}

const order: VideoRequest = { prompt: 'A lighthouse', model: 'video-c-2', duration: 6, aspect_ratio: '9:16', image_url: 'https://example.com/a.png' };
// @ts-expect-error no video has this shape
const square: VideoRequest = { prompt: 'A lighthouse', aspect_ratio: '1:1' };
// @ts-expect-error a video needs a prompt
const silent: VideoRequest = { model: 'video-c-2' };

export async function videos(signal: AbortSignal): Promise<Blob> {
  const accepted: VideoAccepted = await tollgate.video.create(order, { signal });
  const reading: ReadOptions = { signal };
  const status: unknown = await tollgate.video.status(accepted.requestId, reading);
  for await (const news of tollgate.video.watch(accepted.requestId, reading)) {
    const { requestId, state, at }: JobNews = news;
    if (state === 'finished') console.log(requestId, at?.length, news.status, status);
    // @ts-expect-error there is no such state
    if (state === 'running') console.log(state);
  }
  // @ts-expect-error reading takes no key
  await tollgate.video.status(accepted.requestId, { idempotencyKey: 'k' });
  // @ts-expect-error videos are ordered by `create`
  await tollgate.video(order);
  return tollgate.video.content(accepted.requestId);
}

export async function facts(): Promise<number> {
  const catalog: Catalog = await tollgate.catalog();
  const chat: ChatModel | undefined = catalog.chat[0];
  const video: VideoModel | undefined = catalog.video[0];
  const priced: Priced[] = [...catalog.chat, ...catalog.video];
  const lengths = video?.durations;
  const longest = lengths?.kind === 'one_of' ? Math.max(...lengths.values) : lengths?.max ?? 0;
  // @ts-expect-error a range has no list of values
  if (lengths?.kind === 'range') lengths.values;
  const isOpen: boolean = catalog.access === 'open';
  // @ts-expect-error there is no such way to call
  catalog.access === 'closed';
  const ledger: string = catalog.replay.ledger;
  const me: Me = await tollgate.me();
  const budget: Budget | undefined = me.budgets[0];
  // @ts-expect-error not everybody sees the balance
  me.balance.amount_micros;
  const jobs: Jobs = await tollgate.jobs();
  const job: Job | undefined = jobs.rows[0];
  const usage: Usage = await tollgate.usage('24h');
  const asking: AskOptions = { body: { token: 'tg_token' } };
  const login: unknown = await tollgate.ask('/bff/login', asking);
  // @ts-expect-error nobody knows what a document has
  login.length;
  // @ts-expect-error what is asked is named by its path
  await tollgate.ask({ path: '/bff/me' });
  // @ts-expect-error a time is a text
  await tollgate.usage(24);
  // @ts-expect-error a client is frozen
  tollgate.video = plain.video;
  console.log(chat?.best_for, priced.length, isOpen, ledger, callerName(me.caller), job?.request_id, usage.rows[0]?.count);
  // @ts-expect-error a caller has a kind
  callerName({ name: 'ann' });
  return (budget?.left_micros ?? 0) + (me.balance?.amount_micros ?? 0) + longest;
}

export function refusals(error: unknown): Charged {
  if (!(error instanceof TollgateError)) return 'unknown';
  const fault: Fault | undefined = error.errors[0];
  const name: 'TollgateError' = error.name;
  // @ts-expect-error not every refusal says when
  error.retryAfter.toFixed();
  // @ts-expect-error money moved, or it did not, or nobody knows
  if (error.charged === 'maybe') console.log(name);
  // @ts-expect-error it says at least its code and its money
  new TollgateError({ code: 'lost' });
  console.log(fault?.pointer, error.status, error.requestId, error.ledger, error.idempotencyKey, error.cause);
  return error.charged;
}

export function widgets(): void {
  const chat: TollgateElement = document.createElement('tollgate-chat');
  chat.token = async () => 'tg_token';
  chat.addEventListener('tollgate-reply', ({ detail }) => console.log(detail.message.content));
  document.querySelector('tollgate-video')?.addEventListener('tollgate-video', ({ detail }) => console.log(detail.requestId, detail.status));
  // @ts-expect-error a token is a text
  chat.token = 7;
  // @ts-expect-error a chat's event has no job
  chat.addEventListener('tollgate-reply', ({ detail }) => console.log(detail.requestId));
}

export const unused = [wrongRole, tooLittle, square, silent];
