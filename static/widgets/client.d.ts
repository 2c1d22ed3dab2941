/** The types of `core/transport.js`, which is served at `/bff/client.js`; this file at `/bff/client.d.ts`. */

/** Whether money moved. */
export type Charged = 'no' | 'yes' | 'unknown';

/** A fault of a payload: a JSON pointer, a stable name, what was expected. */
export interface Fault {
  pointer: string;
  code: string;
  detail: string;
}

/** A refusal, or a call with an unknown outcome. */
export class TollgateError extends Error {
  constructor(facts: Pick<TollgateError, 'code' | 'charged'> & Partial<TollgateError>);
  name: 'TollgateError';
  /**
   * The problem's code, or one of the client's own:
   * - `connection_lost`: no answer came.
   * - `unreadable`: the answer cannot be read.
   * - `refused`: something else than tollgate refused it, such as the gateway.
   * - `forgotten`: the answer was lost, and the server no longer keeps the key or now has another ledger. It was not sent again.
   * - `stranger`: the token now belongs to another caller, so a retry would be a second purchase. It was not sent again.
   * - `token_failed`: `token` threw (`cause`), so this attempt was not sent.
   * - `retry_failed`: `onRetry` or `onSend` threw (`cause`), so nothing more was sent.
   */
  code: string;
  /** HTTP status; 0 if no answer came. */
  status: number;
  title: string;
  detail: string;
  charged: Charged;
  errors: Fault[];
  /** When the budget that refused it renews; null for one that never does. */
  renewsAt: string | null;
  /** Seconds until a retry makes sense. */
  retryAfter: number | null;
  /** The request's id in tollgate's log. */
  requestId: string | null;
  /** The ledger that the server has now, if its answer names it: of `ledger_changed`, not the one that the purchase named. */
  ledger: string | null;
  /** The challenge of `proof_required`. The client computes for one such refusal of a purchase by itself. */
  proof: { challenge: string; bits: number; expires: string } | null;
  /**
   * The key of a purchase. Call again with it as the same caller to settle an unknown outcome; nothing is bought twice while tollgate
   * keeps the key (`Catalog.replay`).
   */
  idempotencyKey: string | null;
  cause?: unknown;
}

export interface ClientOptions {
  /** Tollgate's address. Default: where the module came from. */
  baseUrl?: string | URL;
  /** A member's token or a JWT, or a function that returns one and is called before each attempt. */
  token?: string | null | (() => string | null | Promise<string | null>);
  /** The highest number of attempts of a call. Default: `RETRIES.app.attempts`. */
  attempts?: number;
  /** The longest wait, in seconds, that a refusal may ask for and still be retried. Default: `RETRIES.app.patience`. */
  patience?: number;
  /** Another `fetch` than the platform's. If it throws a `TollgateError`, the call ends with it; any other error is a lost connection. */
  fetch?: typeof globalThis.fetch;
}

export interface AskOptions extends ReadOptions {
  /** Sent as JSON, once. */
  body?: unknown;
  /** Default: `POST` with a body, else `GET`. */
  method?: string;
  /** Sent with a JSON body. */
  headers?: Record<string, string>;
}

export interface ReadOptions {
  /** Aborts the call, which rejects with the signal's reason. A purchase may still be charged; only its key can settle that. */
  signal?: AbortSignal | undefined;
}

/** The caller and the ledger that a key belongs to. With any other, a retry would buy again, so it is not sent. */
export interface Known {
  caller: string;
  ledger: string | null;
  /** When it was first sent, in milliseconds since 1970. */
  at: number;
  /** For how long the server said that it keeps the key. */
  seconds: number;
  /** Whether it may have been sent to a second ledger. A refusal then says nothing about the first attempt. */
  mayBuyAgain: boolean;
  /** How often it was sent again after a lost attempt. */
  repeats?: number;
}

export interface BuyOptions extends ReadOptions {
  /** Names the purchase. Default: a new one for each call. Valid for one caller only. */
  idempotencyKey?: string | undefined;
  /**
   * Whether this key may have been sent by an earlier call: then a refusal that does not speak of the key leaves the purchase `unknown`.
   * Default: `true` with an `idempotencyKey`. Set `false` for one that was never sent.
   */
  sentBefore?: boolean | undefined;
  /** The `Known` that `onSend` received for this key, kept over a reload. With `ledger: null` the same caller may buy again. */
  known?: Known | null | undefined;
  /** Asks for the answer of a purchase that was sent before, and buys nothing: if none is known, `purchase_not_found` is thrown. */
  replayOnly?: boolean | undefined;
  /** Called before each attempt is sent, and awaited: keep it beside the key. If it throws, nothing is sent (`retry_failed`). */
  onSend?: (known: Known) => void | Promise<void>;
  /** Called before each retry with its reason and its delay in seconds. If it throws, nothing is sent again (`retry_failed`). */
  onRetry?: (reason: TollgateError, seconds: number) => void | Promise<void>;
  /** Called while a proof of work is computed, with the seconds that it takes from now on, on average; and at last with 0. */
  onProof?: (seconds: number) => void;
}

export interface Message {
  role: 'user' | 'assistant' | 'system';
  content: string;
}

export interface ChatRequest {
  model: string;
  messages: Message[];
}

export interface VideoRequest {
  prompt: string;
  model?: string;
  /** Seconds. */
  duration?: number;
  aspect_ratio?: '16:9' | '9:16';
  image_url?: string;
}

/** The fields common to all purchase replies. */
export interface Paid {
  /** US dollars with six places; a replay repeats it and is not charged again. */
  cost: string | null;
  /** Whether this is the reply of an earlier or still running purchase. */
  replayed: boolean;
  idempotencyKey: string;
  /** The gateway's body, unchanged. */
  raw: unknown;
}

export interface ChatReply extends Paid {
  message: { content: string; [field: string]: unknown };
}

export interface VideoAccepted extends Paid {
  requestId: string;
}

export interface JobNews {
  requestId: string;
  state: 'open' | 'finished' | 'failed';
  /** The gateway's status body, unchanged; `null` before its first answer. */
  status: unknown;
  at: string | null;
}

/** US dollars with six places (`0.006000`), and the same in micro-dollars. */
export interface Priced {
  price: string;
  price_micros: number;
}

export interface ChatModel extends Priced {
  id: string;
  tier: string;
  best_for: string;
}

export interface VideoModel extends Priced {
  id: string;
  /** Which lengths it makes, in seconds. `unstated`: the gateway does not say; these are the bounds of all. */
  durations: { kind: 'one_of'; values: number[] } | { kind: 'range' | 'unstated'; min: number; max: number };
  image: 'required' | 'optional';
  aspect_ratio: 'ignored' | 'unstated';
  remarks: string;
}

export interface Catalog {
  mode: 'sandbox' | 'live';
  /** Who may call: anyone, members with a token, users of the app's own login, or users that the embedding app names. */
  access: 'open' | 'members' | 'jwt' | 'host';
  /** The models that the caller may buy from. */
  chat: ChatModel[];
  video: VideoModel[];
  /** `null`: the caller may buy from no such model. */
  defaults: { chat_model: string | null; video_model: string | null; duration: number; aspect_ratio: string };
  limits: { prompt_characters: number; chat_body_bytes: number; video_body_bytes: number };
  aspect_ratios: string[];
  roles: string[];
  /** Which words of a status body mean what, and the only origins of finished videos, unless empty. */
  jobs: { finished: string[]; failed: string[]; result: string[]; media_origins: string[] };
  /** Whether callers without credentials compute before they buy. The client does it by itself. */
  proof?: 'auto';
  /** Who hands out tokens, if `page.contact` says so. */
  contact?: string;
  /** System messages that the page offers. */
  presets: { name: string; system: string }[];
  /** Words in a prompt that make the sandbox misbehave; none where the gateway is live. */
  sandbox_faults: { word: string; does: string }[];
  /** How long a key is kept, and the ledger that keeps it. */
  replay: { chat_seconds: number; video_seconds: number; ledger: string };
}

export interface Budget {
  scope: 'total' | 'caller';
  period: 'day' | 'month';
  limit: string;
  limit_micros: number;
  spent: string;
  spent_micros: number;
  left: string;
  left_micros: number;
  /** When it renews (ISO 8601). */
  renews_at: string;
}

export interface Me {
  caller: { kind: 'address' | 'member' | 'subject'; name?: string; role?: 'member' | 'admin' };
  mode: 'sandbox' | 'live';
  access: 'open' | 'members' | 'jwt' | 'host';
  limits: { requests: number; seconds: number; burst: number; left: number; reset_seconds: number };
  budgets: Budget[];
  /** The account's balance, if the caller may see it. */
  balance?: { amount: string; amount_micros: number; at: string; stale: boolean };
  /** How long a purchase would queue for the account's rate limit now. */
  rate_limit: { wait_seconds: number };
}

export interface Job extends Priced {
  request_id: string;
  model: string;
  state: 'open' | 'finished' | 'failed';
  at: string;
  /** If the server keeps prompts, and you ordered it. */
  prompt?: string;
  /** When the gateway last answered. */
  status_at: string | null;
  /** The gateway's status body, unchanged; `null` before its first answer. */
  status: unknown;
  /** Whether the server has a copy of the finished video, if it keeps videos. */
  kept?: boolean;
  /** Why it has none. */
  not_kept?: string;
  /** Whether you or an admin removed it for good. */
  removed?: boolean;
}

export interface Jobs {
  rows: Job[];
}

export interface Usage {
  since: string;
  total: string;
  total_micros: number;
  /** The price of retries and duplicates that were answered without buying again. */
  saved: string;
  saved_micros: number;
  rows: { day: string; service: 'chat' | 'video'; model: string; count: number; spent: string; spent_micros: number }[];
}

export interface Client {
  /** Buys one reply. */
  chat(request: ChatRequest, options?: BuyOptions): Promise<ChatReply>;
  readonly video: {
    /** Orders one video. */
    create(request: VideoRequest, options?: BuyOptions): Promise<VideoAccepted>;
    /** The gateway's latest status body. */
    status(requestId: string, options?: ReadOptions): Promise<unknown>;
    /** Each change until it has finished or failed. */
    watch(requestId: string, options?: ReadOptions): AsyncGenerator<JobNews, void, void>;
    /** The finished video. */
    content(requestId: string, options?: ReadOptions): Promise<Blob>;
  };
  /** Any other JSON document, such as `/bff/admin/usage`; `null` for an answer without a body. Purchases go through `chat` and `video`. */
  ask(path: string, options?: AskOptions): Promise<unknown>;
  /** The price list (`GET /bff/catalog`). */
  catalog(options?: ReadOptions): Promise<Catalog>;
  /** The caller and its remaining limits and budgets (`GET /bff/me`). */
  me(options?: ReadOptions): Promise<Me>;
  /** The caller's videos, the latest first (`GET /bff/jobs`). */
  jobs(options?: ReadOptions): Promise<Jobs>;
  /** What was spent, for example since `24h`. Default: `7d` (`GET /bff/usage`). */
  usage(since?: string, options?: ReadOptions): Promise<Usage>;
}

/** Properties and methods of the widgets of `/bff/widgets.js`, in addition to their attributes. */
export interface TollgateElement extends HTMLElement {
  token: ClientOptions['token'];
}

declare global {
  interface HTMLElementTagNameMap {
    'tollgate-chat': TollgateElement;
    'tollgate-video': TollgateElement;
  }
  interface HTMLElementEventMap {
    'tollgate-reply': CustomEvent<ChatReply>;
    'tollgate-sign-in': CustomEvent<null>;
    'tollgate-video': CustomEvent<VideoAccepted & { status: unknown }>;
  }
}

/** The default retries of apps, and those of the page, whose user can press a button instead. */
export const RETRIES: Record<'app' | 'page', { attempts: number; patience: number }>;

/** Makes a new Idempotency-Key. */
export function newKey(): string;

/** Returns a caller's name as in `Known`. */
export function callerName(caller: Me['caller']): string;

export function createClient(options?: ClientOptions): Client;
