// Buys from tollgate once, with any number of retries.
const TOLLGATE = 'http://127.0.0.1:8080';

export async function buy(path, order, token, key = crypto.randomUUID()) {
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': key };
  if (token) headers.Authorization = `Bearer ${token}`;
  for (let attempt = 0; attempt < 5; attempt += 1) {
    let seconds = 1;
    try {
      const reply = await fetch(TOLLGATE + path, { method: 'POST', headers, body: JSON.stringify(order) });
      const body = await reply.json();
      if (reply.ok) return body;
      // The gateway's own refusal has no `code`, and is free.
      const { code = body.error, charged = 'no' } = body;
      if (![409, 429, 503].includes(reply.status)) throw new Error(`${reply.status} ${code}: charged ${charged}, key ${key}`, { cause: body });
      seconds = Number(reply.headers.get('Retry-After') ?? 1);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // a TypeError is a lost connection
    }
    await new Promise((resume) => { setTimeout(resume, seconds * 1000); });
  }
  throw new Error(`no answer: charged unknown, key ${key}`);
}
