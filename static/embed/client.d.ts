/** A client for tollgate. Served at `/bff/client.js`; this file at `/bff/client.d.ts`. */

/** Whether money moved. */
export type Charged = 'no' | 'yes' | 'unknown';

/** A fault of a payload: a JSON pointer, a stable name, what was expected. */
export interface Fault {
  pointer: string;
  code: string;
  detail: string;
}

/** A refusal, or a call whose outcome nobody here knows. */
export class TollgateError extends Error {
  /** The problem's code, or `connection_lost`, `unreadable`, `refused`. */
  code: string;
  /** HTTP status; 0 where no answer came. */
  status: number;
  title: string;
  detail: string;
  charged: Charged;
  errors: Fault[];
  /** Seconds until another try makes sense. */
  retryAfter: number | null;
  /** The request's name in tollgate's log. */
  requestId: string | null;
  /** Of a purchase: calling again with it settles what is unknown, and never buys twice. */
  idempotencyKey: string | null;
}

export interface ClientOptions {
  /** Where tollgate is; where the module came from by default. */
  baseUrl?: string | URL;
  /** A member's token or a JWT, or what gives one. */
  token?: string | null | (() => string | null | Promise<string | null>);
  /** How often a call is sent at most; 5 when nothing is said. */
  attempts?: number;
  fetch?: typeof fetch;
}

export interface ReadOptions {
  signal?: AbortSignal;
}

export interface BuyOptions extends ReadOptions {
  /** Names the purchase; made anew for each call when nothing is said. */
  idempotencyKey?: string;
  /** Told before each repeat: why, and after how many seconds. */
  onRetry?: (reason: TollgateError, seconds: number) => void;
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

/** What every purchase is answered with, besides its own. */
export interface Paid {
  /** US dollars with six places; a replay repeats it and is not charged again. */
  toll: string | null;
  /** Whether it is the reply of an earlier or running purchase. */
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
  /** The gateway's status body, unchanged; `null` before it said anything. */
  status: unknown;
  at: string | null;
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
  /** The price list (`GET /bff/catalog`). */
  catalog(options?: ReadOptions): Promise<unknown>;
  /** What is left (`GET /bff/me`). */
  me(options?: ReadOptions): Promise<unknown>;
  jobs(options?: ReadOptions): Promise<unknown>;
  /** What was spent, such as since `7d`. */
  usage(since?: string, options?: ReadOptions): Promise<unknown>;
}

/** A name that no other purchase has: an Idempotency-Key. */
export function newKey(): string;

export function createClient(options?: ClientOptions): Client;
