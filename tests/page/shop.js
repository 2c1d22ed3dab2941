// Stands between a page and tollgate in a browser test: a classic script before the elements. It wraps `fetch`, as
// a bad connection or a server that was restarted would, and notes what was sent.
{
  const real = fetch;
  // What a test wants of a page from its beginning.
  const wanted = JSON.parse(sessionStorage.getItem('test') ?? '{}');
  /** What happens to purchases from now on: nothing, 'drop' them, 'lose' their answers, 'hold' them, or a refusal: `[status, code]`. */
  globalThis.fault = wanted.fault ?? null;
  /** How the question who is calling is refused, if it is. */
  globalThis.accountFault = wanted.accountFault ?? null;
  /** What the price list's `replay` says otherwise. */
  globalThis.replay = wanted.replay ?? {};
  /** And what it says once this page has sent something. */
  globalThis.replayAfterwards = {};
  /** The key, bearer and ledger of each purchase that was sent, and the signals of the event streams. */
  globalThis.sent = [];
  globalThis.streams = [];
  const now = Date.now;
  // It is that many milliseconds later here than there.
  Date.now = () => now() + (wanted.later ?? 0);
  let release;
  const held = new Promise((done) => { release = done; });
  globalThis.release = () => release();

  /** What the ledger is really called. Where `replay` gives it another name, the server answers to that one alone. */
  let realName = null;
  const pretended = () => ({ ...replay, ...(sent.length && replayAfterwards) });
  const problem = ([status, code]) => new Response(JSON.stringify({ code, charged: 'no', title: code, detail: `It is ${code}` }), { status });
  globalThis.fetch = async (url, options = {}) => {
    const { pathname } = new URL(url);
    if (options.method === 'POST') {
      const { ledger: name } = pretended();
      const ledger = options.headers['tollgate-ledger'] ?? null;
      sent.push({ key: options.headers['idempotency-key'], bearer: options.headers.authorization ?? null, ledger });
      if (Array.isArray(fault)) return problem(fault);
      if (fault === 'drop') throw new TypeError('Failed to fetch');
      if (name && ledger !== name) return problem([412, 'ledger_changed']);
      const headers = name ? { ...options.headers, 'tollgate-ledger': realName } : options.headers;
      const answer = await real(url, { ...options, headers });
      if (fault === 'lose') throw new TypeError('Failed to fetch');
      if (fault === 'hold') await held;
      return answer;
    }
    if (pathname === '/bff/me' && Array.isArray(accountFault)) return problem(accountFault);
    if (pathname === '/bff/events') streams.push(options.signal ?? null);
    const answer = await real(url, options);
    if (pathname !== '/bff/catalog') return answer;
    const list = await answer.json();
    realName = list.replay.ledger;
    return Response.json({ ...list, replay: { ...list.replay, ...pretended() } });
  };
}
