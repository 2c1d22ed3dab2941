// Called in the open page by a browser test (`Runtime.evaluate`, awaited, by value): returns the list of what is
// wrong, empty when all is well. Each case has a `fetch` of its own that answers by a script; the
// pauses are real ones, so the cases run side by side. With `modules`, the address of the page's own modules, the
// purchases of the table go through the page's store; without it, straight through /bff/client.js.
async (modules) => {
  const { createClient, TollgateError } = await import('/bff/client.js');
  const { Purchases, draft } = modules ? await import(`${modules}core/purchases.js`) : {};
  const { purchases: shelf, keepFor } = modules ? await import(`${modules}core/site.js`) : {};
  if (modules) keepFor('');
  const REQUEST = { model: 'm', messages: [{ role: 'user', content: 'Hello' }] };

  // What a server can do.
  const bought = (headers = {}) => () => new Response('{"message":{"role":"assistant","content":"Hi"}}', { headers });
  const lost = () => { throw new TypeError('Failed to fetch'); };
  const cut = () => new Response(new ReadableStream({ start: (body) => body.error(new TypeError('cut')) }));
  const refused = (status, code, charged, headers = {}) => () =>
    new Response(JSON.stringify({ code, charged, title: code, detail: `It is ${code}`, errors: [{ pointer: '/model' }] }), { status, headers });
  const html = (status, headers = {}) => () => new Response('<h1>Bad Gateway</h1>', { status, headers });
  const keeps = (seconds, ledger = 'one') => () => Response.json({ replay: { ledger, chat_seconds: seconds } });
  const open = () => Response.json({ access: 'open', replay: { ledger: 'one', chat_seconds: 100 } });
  const offline = () => { throw new TollgateError({ code: 'offline', charged: 'no' }); };
  const after = (seconds) => ({ 'retry-after': String(seconds) });

  /**
   * A client whose chats go through `Purchases` and the page's store: a key that was sent before is one that an earlier page has kept.
   * Rejects with the problem that is kept, once the kept record says the same.
   */
  function throughStore(client) {
    const chat = async (payload, { idempotencyKey: brought, sentBefore = brought != null, known = {}, onRetry, onSend } = {}) => {
      // Cases run side by side, and a key stands for one purchase.
      const key = `${brought ?? 'new'} ${Math.random()}`;
      const isFull = ({ state }) => onSend && state === 'sent';
      const store = { put: async (record) => !isFull(record) && shelf.put(record) };
      const record = draft({ key, kind: 'chat', payload, costMicros: 0, session: 'table' });
      if (sentBefore) {
        Object.assign(record, { state: 'sent', caller: 'member ann', ledger: 'one', seconds: 100 }, known);
        // It was sent to a ledger; that it may be bought a second time, a person says.
        record.ledger ??= 'another';
      }
      const purchases = new Purchases({ store, transport: client });
      purchases.remember({ ledger: 'one', chat_seconds: 100 });
      await purchases.send(record, { atRisk: known.ledger === null, onRetry });
      const kept = await shelf.one(key);
      if (kept.state !== record.state || kept.problem?.code !== record.problem?.code) throw new Error(`${kept.state} is kept, not ${record.state}`);
      if (record.state === 'done') return record.reply;
      const states = { no: 'refused', yes: 'charged', unknown: 'unknown' };
      if (record.state !== states[record.problem.charged]) throw new Error(`${record.state}, and charged: ${record.problem.charged}`);
      throw Object.assign(new TollgateError(record.problem), { idempotencyKey: key });
    };
    return { ...client, chat };
  }

  /** Runs `errand` with a client whose requests are answered by `script`, one after another. */
  async function play(script, errand, { ledgers = ['one'], callers = {}, ...options } = {}, wrap = (client) => client) {
    const sent = [];
    let looked = 0;
    let asked = 0;
    const fetch = async (url, { method = 'GET', headers }) => {
      // What is read before a purchase, and before its repeat.
      if (url.endsWith('/bff/me') && errand !== me) return Response.json({ caller: { kind: 'member', name: callers[headers.authorization] ?? callers[(asked += 1) - 1] ?? 'ann' } });
      if (url.endsWith('/bff/catalog')) {
        const ledger = ledgers[Math.min(looked, ledgers.length - 1)];
        looked += 1;
        return typeof ledger === 'function' ? ledger() : keeps(100, ledger)();
      }
      sent.push({ method, key: headers['idempotency-key'], authorization: headers.authorization, ledger: headers['tollgate-ledger'] });
      const step = script[sent.length - 1];
      if (!step) throw new Error('one request too many');
      return step();
    };
    const began = performance.now();
    let answer = null;
    let error = null;
    try {
      const late = new Promise((_, fail) => { setTimeout(() => fail(new Error('it takes too long')), 55_000); });
      answer = await Promise.race([errand(wrap(createClient({ fetch, ...options }))), late]);
    } catch (thrown) {
      error = thrown;
    }
    return { sent, answer, error, took: performance.now() - began };
  }
  const chat = (client) => client.chat(REQUEST);
  const me = (client) => client.me();
  // A key of one's own: sent before, as far as the client knows, unless the call says otherwise.
  const repeat = (client) => client.chat(REQUEST, { idempotencyKey: 'mine' });
  const first = (client) => client.chat(REQUEST, { idempotencyKey: 'mine', sentBefore: false });
  /** A token that cannot be had the `fails`th time. */
  const token = (fails) => {
    let asked = 0;
    return { token: async () => { if ((asked += 1) === fails) throw new RangeError('no session'); return 't'; } };
  };
  const tokens = () => {
    let asked = 0;
    return { token: () => `t${asked += 1}` };
  };
  /** A key that a page has kept, with what `onSend` said about it. */
  const known = (otherwise) => (client) => client.chat(REQUEST, { idempotencyKey: 'mine', known: { caller: 'member ann', ledger: 'one', at: Date.now(), ...otherwise } });
  /** A ledger that is another one as soon as a second token was asked for. */
  const forgetting = () => {
    let asked = 0;
    return { token: async () => { asked += 1; return 't'; }, ledgers: [() => keeps(100, asked > 1 ? 'two' : 'one')()] };
  };
  const CHANGED = refused(412, 'ledger_changed', 'no');
  const stubborn = (client) => client.chat(REQUEST, { onRetry: () => { throw new RangeError('no more'); } });

  const ELSEWHERE = 'http://127.0.0.1:9';
  const UNLISTED = `No answer from ${ELSEWHERE}. Is it running, and is ${location.origin} in its access.allowed_origins?`;
  const LOST = 'The connection was lost before the answer arrived';

  // What is done, how the server behaves, how many requests that takes, and what comes of it.
  const CASES = [
    ['a lost reply is asked for again', chat, [lost, bought({ 'idempotent-replayed': 'true' })], 2, { replayed: true }],
    ['so is one that is cut', chat, [cut, bought()], 2, { replayed: false }],
    ['a purchase under way is joined later', chat, [refused(409, 'in_flight', 'unknown', after(1)), bought()], 2, {}],
    ['a full house is waited for', chat, [refused(429, 'rate_limited', 'no', after(1)), bought()], 2, {}],
    ['so is one that is late', chat, [refused(503, 'gateway_busy', 'no', after(1)), bought()], 2, {}],
    ['409 without a time is said', chat, [refused(409, 'idempotency_conflict', 'no')], 1, { charged: 'no', status: 409, retryAfter: null }],
    ['429 without a time is said', chat, [refused(429, 'rate_limited', 'no')], 1, { charged: 'no', retryAfter: null }],
    ['503 without a time is said', chat, [refused(503, 'ledger_unavailable', 'no')], 1, { code: 'ledger_unavailable' }],
    ['a time that nobody waits for is said', chat, [refused(429, 'rate_limited', 'no', after(61))], 1, { retryAfter: 61 }],
    ['a time at once is a second', chat, [refused(429, 'rate_limited', 'no', after(0)), bought()], 2, {}],
    ['a date is no number of seconds', chat, [refused(429, 'rate_limited', 'no', after('Sat, 21 Nov 2026 00:00:00 GMT'))], 1, { retryAfter: null }],
    ['a fault of the payload is said', chat, [refused(400, 'invalid_request', 'no')], 1, { code: 'invalid_request', charged: 'no', detail: 'It is invalid_request' }],
    ['what is spent is not tried again', chat, [refused(502, 'outcome_unknown', 'unknown', after(1))], 1, { charged: 'unknown' }],
    ['a refused repeat does not settle what was lost', chat, [lost, refused(401, 'unauthorized', 'no')], 2, { charged: 'unknown', code: 'unauthorized' }],
    ['nor does a proxy between', chat, [lost, html(502)], 2, { charged: 'unknown', code: 'refused' }],
    ['what speaks of the key settles it', chat, [lost, refused(402, 'insufficient_credit', 'no')], 2, { charged: 'no' }],
    ['so does the gateway\'s own refusal', chat, [lost, html(400, { 'tollgate-cost': '0' })], 2, { charged: 'no', code: 'refused' }],
    ['a refusal that cost nothing leaves no doubt', chat, [refused(429, 'rate_limited', 'no', after(1)), refused(401, 'unauthorized', 'no')], 2, { charged: 'no' }],
    ['an answer that is not JSON is not bought again', chat, [() => new Response('<p>')], 1, { code: 'unreadable', charged: 'unknown' }],
    ['another server\'s refusal leaves a purchase unknown', chat, [html(502)], 1, { code: 'refused', charged: 'unknown', status: 502 }],
    ['the gateway\'s own refusal has a cost', chat, [html(400, { 'tollgate-cost': '0' })], 1, { charged: 'no' }],
    ['reading costs nothing', me, [html(502)], 1, { code: 'refused', charged: 'no' }],
    ['what is read is asked for again', me, [lost, () => new Response('{"member":null}')], 2, { member: null }],
    ['an unlisted page is told so', me, [lost], 1, { code: 'connection_lost', charged: 'no', detail: UNLISTED }, { attempts: 1, baseUrl: ELSEWHERE }],
    ['unless it had an answer', me, [html(503, after(1)), lost], 2, { code: 'connection_lost', detail: LOST }, { attempts: 2, baseUrl: ELSEWHERE }],
    ['or is the server\'s own', me, [lost], 1, { code: 'connection_lost', detail: LOST }, { attempts: 1 }],
    ['attempts are counted', chat, [lost, lost], 2, { code: 'connection_lost', charged: 'unknown' }, { attempts: 2 }],
    ['one attempt is one', chat, [lost], 1, { code: 'connection_lost', charged: 'unknown' }, { attempts: 1 }],
    ['no number is one attempt', chat, [lost], 1, { code: 'connection_lost' }, { attempts: NaN }],
    ...[[401, 'invalid_credentials'], [403, 'forbidden'], [429, 'rate_limited'], [503, 'draining'], [503, 'overloaded'], [503, 'ledger_unavailable'], [422, 'idempotency_key_reused']]
      .map(([status, code]) => [`${code} says nothing of an earlier attempt`, repeat, [refused(status, code, 'no')], 1, { code, charged: 'unknown' }]),
    ['nor does it where it is sent again', repeat, [refused(429, 'rate_limited', 'no', after(1)), refused(401, 'invalid_credentials', 'no')], 2, { charged: 'unknown' }],
    ['what speaks of the key settles an earlier attempt', repeat, [refused(402, 'budget_exhausted', 'no')], 1, { charged: 'no' }],
    ['an answer settles it', repeat, [bought({ 'idempotent-replayed': 'true' })], 1, { replayed: true, idempotencyKey: 'mine' }],
    ['a key that was never sent is refused for nothing', first, [refused(401, 'invalid_credentials', 'no')], 1, { charged: 'no' }],
    ['a token that cannot be had sends nothing', chat, [], 0, { code: 'token_failed', charged: 'no', detail: 'no session' }, token(1)],
    ['nor does it speak of an earlier attempt', repeat, [], 0, { code: 'token_failed', charged: 'unknown', idempotencyKey: 'mine' }, token(1)],
    ['nor of one that was lost', chat, [lost], 1, { code: 'token_failed', charged: 'unknown' }, token(2)],
    ['a token that no header takes is none', chat, [], 0, { code: 'token_failed', charged: 'no' }, { token: 'a\nb' }],
    ['reading without a token costs nothing', me, [], 0, { code: 'token_failed', charged: 'no' }, token(1)],
    ['who stops at a lost attempt keeps its key', stubborn, [lost], 1, { code: 'retry_failed', charged: 'unknown', detail: 'no more' }],
    ['who stops at a refusal has paid nothing', stubborn, [refused(429, 'rate_limited', 'no', after(1))], 1, { code: 'retry_failed', charged: 'no' }],
    ['another ledger is not asked', chat, [lost], 1, { code: 'forgotten', charged: 'unknown' }, { ledgers: ['one', 'two'] }],
    ['nor what is joined', chat, [refused(409, 'in_flight', 'unknown', after(1))], 1, { code: 'forgotten' }, { ledgers: ['one', 'two'] }],
    ['nor one that keeps keys no longer', chat, [lost], 1, { code: 'forgotten', charged: 'unknown' }, { ledgers: [keeps(0)] }],
    ['nor one that does not say how long', chat, [lost], 1, { code: 'forgotten' }, { ledgers: [keeps()] }],
    ['a refusal that cost nothing may be repeated anywhere', chat, [refused(429, 'rate_limited', 'no', after(1)), bought()], 2, {}, { ledgers: ['one', 'two'] }],
    ['and counts from there', chat, [refused(429, 'rate_limited', 'no', after(1)), lost, bought()], 3, {}, { ledgers: ['one', 'two', 'two'] }],
    ['a look that is lost is an attempt', chat, [lost, bought()], 2, {}, { ledgers: ['one', lost, 'one'] }],
    ['and ends with them', chat, [lost], 1, { code: 'connection_lost', charged: 'unknown' }, { ledgers: ['one', lost], attempts: 2 }],
    ['who cannot look has paid nothing', chat, [], 0, { code: 'connection_lost', charged: 'no' }, { ledgers: [lost], attempts: 2 }],
    ['but may have, with an earlier key', repeat, [], 0, { code: 'connection_lost', charged: 'unknown' }, { ledgers: [lost], attempts: 1 }],
    ['a look that is refused sends nothing', chat, [], 0, { code: 'refused', status: 502, charged: 'no' }, { ledgers: [html(502)] }],
    ['and says nothing of what was lost', chat, [lost], 1, { code: 'refused', status: 502, charged: 'unknown' }, { ledgers: ['one', html(502)] }],
    ['a look that is put off is waited for', chat, [bought()], 1, {}, { ledgers: [refused(429, 'rate_limited', 'no', after(1)), 'one'] }],
    ['nor one who is another by now with the same token', chat, [lost], 1, { code: 'stranger', charged: 'unknown' }, { token: 't', callers: ['ann', 'bob'] }],
    ['a price list that is nothing keeps the key', chat, [lost], 1, { code: 'unreadable', charged: 'unknown' }, { ledgers: ['one', () => new Response('null')] }],
    ['another caller is not answered', chat, [lost], 1, { code: 'stranger', charged: 'unknown' }, { ...tokens(), callers: { 'Bearer t2': 'bob' } }],
    ['the same one with another token is', chat, [lost, bought()], 2, {}, tokens()],
    ['nor buys what the first one wanted', chat, [refused(429, 'rate_limited', 'no', after(1))], 1, { code: 'stranger', charged: 'no' }, { ...tokens(), callers: { 'Bearer t2': 'bob' } }],
    ['what a page has kept is compared', known({}), [bought()], 1, {}],
    ['to another ledger', known({ ledger: 'two' }), [], 0, { code: 'forgotten', charged: 'unknown' }],
    ['too late', known({ at: 0 }), [], 0, { code: 'forgotten', charged: 'unknown' }],
    ['by a clock that was set back', known({ at: Date.now() + 60_000 }), [], 0, { code: 'forgotten' }],
    ['by another caller', known({ caller: 'member bob' }), [], 0, { code: 'stranger', charged: 'unknown' }],
    ['unless it may be bought again', known({ ledger: null }), [bought()], 1, {}],
    ['then no refusal speaks of the first one', known({ ledger: null }), [refused(402, 'insufficient_credit', 'no')], 1, { charged: 'unknown' }],
    ['nor later', known({ mayBuyAgain: true }), [refused(402, 'insufficient_credit', 'no')], 1, { charged: 'unknown' }],
    ['nor one that an earlier version kept', known({ anew: true }), [refused(402, 'insufficient_credit', 'no')], 1, { charged: 'unknown' }],
    ['as long as it was to be kept then', known({ at: Date.now() - 80_000, seconds: 80 }), [], 0, { code: 'forgotten', charged: 'unknown' }, { ledgers: [keeps(1000)] }],
    ['and never by another caller', known({ ledger: null, caller: 'member bob' }), [], 0, { code: 'stranger' }],
    ['and then as any other', known({ ledger: null }), [lost], 1, { code: 'forgotten' }, { ledgers: ['one', 'two'] }],
    ['what cannot be kept is not sent', (client) => client.chat(REQUEST, { onSend: () => { throw new RangeError('full'); } }), [], 0, { code: 'retry_failed', charged: 'no', detail: 'full' }],
    ['a price list without a ledger is none', chat, [], 0, { code: 'unreadable', charged: 'no' }, { ledgers: [() => new Response('{}')] }],
    ['whoever forgets while a token is had is not asked', chat, [lost], 1, { code: 'forgotten' }, forgetting()],
    // The server checks the ledger that a purchase names: it may have changed since the look.
    ['an unsent key follows the ledger', chat, [CHANGED, bought()], 2, { ledgers: 'one,two' }, { ledgers: ['one', 'two'] }],
    ['also with its only attempt', chat, [CHANGED, bought()], 2, { replayed: false }, { ledgers: ['one', 'two'], attempts: 1 }],
    ['also after a free refusal', chat, [refused(429, 'rate_limited', 'no', after(1)), CHANGED, bought()], 3, { ledgers: 'one,two,three' }, { ledgers: ['one', 'two', 'three'] }],
    ['and then counts as sent', chat, [CHANGED, lost, CHANGED], 3, { code: 'forgotten', charged: 'unknown', ledgers: 'one,two,two' }, { ledgers: ['one', 'two'] }],
    ['a ledger that changes again is refused', chat, [CHANGED, CHANGED], 2, { code: 'ledger_changed', status: 412, charged: 'no' }],
    ['a lost key is not sent to another ledger', chat, [lost, CHANGED], 2, { code: 'forgotten', charged: 'unknown', ledgers: 'one,one' }],
    ['nor is one that still ran', chat, [refused(409, 'still_running', 'unknown', after(1)), CHANGED], 2, { code: 'forgotten', charged: 'unknown' }],
    ['nor a repeat of an earlier call', repeat, [CHANGED], 1, { code: 'forgotten', charged: 'unknown', ledgers: 'one' }],
    ['nor what a page has kept', known({}), [CHANGED], 1, { code: 'forgotten', charged: 'unknown', ledgers: 'one' }],
    ['nor what a person sent at risk', known({ ledger: null }), [CHANGED], 1, { code: 'forgotten', charged: 'unknown', ledgers: 'one' }],
    ['a key of one\'s own that was never sent follows the ledger', first, [CHANGED, bought()], 2, { ledgers: 'one,two' }, { ledgers: ['one', 'two'] }],
    ['none is one attempt', chat, [lost], 1, { code: 'connection_lost' }, { attempts: 0 }],
    ['an unsent key goes to the ledger that the refusal names', chat, [refused(412, 'ledger_changed', 'no', { 'tollgate-ledger': 'two' }), bought()], 2, { ledgers: 'one,two' }],
    ['a wait beyond the client\'s patience is said', chat, [refused(429, 'rate_limited', 'no', after(2))], 1, { retryAfter: 2 }, { patience: 1 }],
    ['patience does not limit what was lost', chat, [lost, bought()], 2, {}, { patience: 0 }],
    ['in open mode everybody is the same caller', chat, [lost, bought()], 2, {}, { ledgers: [open], callers: ['ann', 'bob'], token: 't' }],
    ['a fetch that knows better is believed', chat, [offline], 1, { code: 'offline', charged: 'no' }],
    ['but not about an earlier attempt', chat, [lost, offline], 2, { code: 'offline', charged: 'unknown' }],
  ];
  const plain = async ([name, errand, script, count, wanted, options]) => {
    // The store has words of its own for what it cannot keep, and the kept key its own name.
    const expected = { ...wanted, ...(modules && wanted.detail === 'full' && { code: 'unkept', detail: undefined }) };
    if (modules) delete expected.idempotencyKey;
    const { sent, answer, error } = await play(script, errand, options, modules ? throughStore : undefined);
    const faults = [];
    const isPurchase = errand !== me;
    if (sent.length !== count) faults.push(`${sent.length} requests, not ${count}`);
    if (count && (new Set(sent.map(({ key }) => key)).size !== 1 || Boolean(sent[0].key) !== isPurchase)) faults.push('another key, or none');
    if (error && !(error instanceof TollgateError)) faults.push(`threw ${error}`);
    if (error && isPurchase && (!error.idempotencyKey || (count && error.idempotencyKey !== sent[0].key))) faults.push('the error has not the key');
    for (const [field, value] of Object.entries(expected)) {
      const got = field === 'ledgers' ? sent.map(({ ledger }) => ledger).join() : (error ?? answer)[field];
      if (got !== value) faults.push(`${field} is ${got}, not ${value}`);
    }
    if (isPurchase && sent.some(({ ledger }) => !ledger)) faults.push('a purchase names no ledger');
    if (('code' in wanted || 'charged' in wanted || 'retryAfter' in wanted) !== Boolean(error)) faults.push(`ended with ${error ?? 'an answer'}`);
    return faults.map((fault) => `${name}: ${fault}`);
  };

  // An abort ends a pause at once, whatever the reason, and nothing more is sent.
  const stopped = async () => {
    const stop = new AbortController();
    const reason = new Error('gone');
    const errand = (client) => client.chat(REQUEST, { signal: stop.signal, onRetry: () => setTimeout(() => stop.abort(reason), 50) });
    const { sent, error, took } = await play([refused(429, 'rate_limited', 'no', after(30))], errand);
    return sent.length === 1 && error === reason && took < 25_000 ? [] : [`an abort: ${sent.length} requests, ${error}, ${took} ms`];
  };
  const stoppedBefore = async () => {
    const errand = (client) => client.chat(REQUEST, { signal: AbortSignal.abort(new Error('gone')), idempotencyKey: 'mine' });
    const { sent, error } = await play([lost], errand);
    return sent.length === 1 && !(error instanceof TollgateError) ? [] : [`an early abort: ${sent.length} requests, ${error}`];
  };
  // Whatever breaks because of an abort, it is the abort that is refused.
  const stoppedWithItsToken = async () => {
    const stop = new AbortController();
    const reason = new Error('gone');
    const options = { token: async () => { stop.abort(reason); throw new TypeError('no session'); } };
    const { sent, error } = await play([], (client) => client.chat(REQUEST, { signal: stop.signal }), options);
    return sent.length === 0 && error === reason ? [] : [`an abort before the token: ${sent.length} requests, ${error}`];
  };
  const stoppedInTheMiddle = async () => {
    const stop = new AbortController();
    const reason = new Error('gone');
    const script = [() => { stop.abort(reason); return cut(); }];
    const { sent, error } = await play(script, (client) => client.chat(REQUEST, { signal: stop.signal }));
    return sent.length === 1 && error === reason ? [] : [`an abort in the middle: ${sent.length} requests, ${error}`];
  };
  // What it broke on can be looked into.
  const caused = async () => {
    const { error } = await play([lost], stubborn);
    return error?.cause instanceof RangeError ? [] : [`a cause: ${error?.cause}`];
  };
  // A key that the caller brings is the purchase's; a token is asked for before each attempt.
  const named = async () => {
    let asked = 0;
    const token = async () => `t${asked += 1}`;
    const { sent, answer } = await play([lost, bought()], (client) => client.chat(REQUEST, { idempotencyKey: 'mine' }), { token });
    const shown = sent.map(({ key, authorization }) => `${key} ${authorization}`).join();
    return shown === 'mine Bearer t1,mine Bearer t2' && answer?.idempotencyKey === 'mine' ? [] : [`a named purchase: ${shown}`];
  };
  // What a client knows of a key holds for all its calls with it, and no call opens the way for another.
  const twice = (second) => async (client) => {
    const { idempotencyKey } = await client.chat(REQUEST).catch((error) => error);
    const words = [];
    for (const options of second) words.push(await client.chat(REQUEST, { idempotencyKey, ...options }).then(() => 'bought', ({ code, charged }) => `${code} ${charged}`));
    return { words: words.join() };
  };
  const REFUSED = refused(401, 'invalid_credentials', 'no');
  const SEVERAL = [
    ['who calls again finds another ledger each time', twice([{}, {}]), [lost], 'forgotten unknown,forgotten unknown', ['one', 'two']],
    ['or the same one, after another look', twice([{}, {}]), [lost, bought()], 'refused unknown,bought', ['one', html(502), 'one']],
    ['whatever is said of the key, it was sent', twice([{ sentBefore: false }]), [lost, REFUSED], 'invalid_credentials unknown', ['one']],
    ['also where there is no token', twice([{ sentBefore: false }]), [lost], 'token_failed unknown', ['one'], token(2)],
    ['what was bought is not bought again elsewhere', twice([{}]), [bought()], 'forgotten unknown', ['one', 'two']],
    ['what was refused may be', twice([{ sentBefore: false }]), [REFUSED, bought()], 'bought', ['one', 'two']],
  ];
  const several = async ([name, errand, script, wanted, ledgers, options]) => {
    const { sent, answer, error } = await play(script, errand, { ledgers, attempts: 1, ...options });
    return answer?.words === wanted && sent.length === script.length ? [] : [`${name}: ${answer?.words}, ${error}, ${sent.length} requests`];
  };
  // Two calls with one key, whoever is slower: `later` holds up the second one's token, or its first look.
  const atOnce = async (later, options) => {
    let asked = 0;
    let looks = 0;
    const slowly = () => new Promise((done) => { setTimeout(done, 300, keeps(100, 'two')()); });
    const wanted = {
      attempts: 2,
      ledgers: [() => keeps(100, 'one')(), () => (later === 'look' ? lost() : keeps(100, looks ? 'two' : 'one')()), () => keeps(100, 'two')()],
      token: async () => { asked += 1; if (asked === 2 && later === 'token') { await slowly(); looks = 1; } return 't'; },
    };
    const errand = async (client) => {
      const one = () => client.chat(REQUEST, { idempotencyKey: 'mine', ...options }).then(() => 'bought', ({ code, charged }) => `${code} ${charged}`);
      return { ends: String(await Promise.all([one(), one()])) };
    };
    const { sent, answer } = await play([lost, lost], errand, wanted);
    const most = later ? 1 : 2;
    return sent.length === most && answer?.ends === 'forgotten unknown,forgotten unknown' ? [] : [`two calls at once, ${later}: ${sent.length} requests, ${answer?.ends}`];
  };
  // What is noted is refused before each attempt, the same for all of them.
  const noted = async () => {
    const refused = [];
    await play([lost, bought()], (client) => client.chat(REQUEST, { onSend: (word) => refused.push(word) }));
    const [one, two] = refused;
    return refused.length === 2 && one.caller === 'member ann' && one.ledger === 'one' && one.at === two.at ? [] : [`what is noted: ${JSON.stringify(refused)}`];
  };
  // Nothing is sent before what is noted of it is kept.
  const keptFirst = async () => {
    const course = [];
    const script = [() => { course.push('sent'); return bought()(); }];
    const onSend = () => new Promise((done) => { setTimeout(() => { course.push('kept'); done(); }, 50); });
    await play(script, (client) => client.chat(REQUEST, { onSend }));
    return course.join() === 'kept,sent' ? [] : [`the course of a purchase: ${course}`];
  };
  // A POST that has no key is sent once; an answer without a body is nothing.
  const askedOnce = async () => {
    const ask = (client) => client.ask('/bff/login', { body: {} }).then((answer) => ({ answer }));
    const cut = await play([lost], ask);
    const empty = await play([() => new Response(null, { status: 204 })], ask);
    const isRight = cut.sent.length === 1 && cut.error?.code === 'connection_lost' && empty.sent[0].method === 'POST' && empty.answer?.answer === null;
    return isRight ? [] : [`a POST: ${cut.sent.length} requests, ${cut.error}, ${JSON.stringify(empty.answer)}, ${empty.error}`];
  };
  // A client that lives long forgets what has ended long ago, and nothing that may still be charged.
  const lastingly = async () => {
    const put = Map.prototype.set;
    let largest = 0;
    Map.prototype.set = function (...pair) { put.apply(this, pair); largest = Math.max(largest, this.size); return this; };
    const many = 1_200;
    const keyOf = (error) => error.idempotencyKey;
    const errand = async (client) => {
      const open = await client.chat(REQUEST).catch(keyOf);
      for (let count = 0; count < many; count += 1) await client.chat(REQUEST);
      return { again: await client.chat(REQUEST, { idempotencyKey: open, sentBefore: false }).catch(({ charged }) => charged) };
    };
    const script = [lost, ...Array.from({ length: many }, () => bought()), REFUSED];
    const { sent, answer, error } = await play(script, errand, { attempts: 1 }).finally(() => { Map.prototype.set = put; });
    return largest <= 1_001 && sent.length === script.length && answer?.again === 'unknown' ? [] : [`a long life: ${largest} notes, ${sent.length} requests, ${answer?.again}, ${error}`];
  };
  // A reason is whoever's it is, also an error of ours.
  const stoppedByAnother = async () => {
    const stop = new AbortController();
    const reason = new TollgateError({ code: 'budget_exhausted', charged: 'no', idempotencyKey: 'other' });
    const script = [() => { stop.abort(reason); return cut(); }];
    const { error } = await play(script, (client) => client.chat(REQUEST, { signal: stop.signal }));
    return error === reason && reason.idempotencyKey === 'other' ? [] : [`another's reason: ${error}`];
  };
  const stoppedWaitingForItsToken = async () => {
    const reason = new Error('gone');
    const stop = new AbortController();
    setTimeout(() => stop.abort(reason), 50);
    const { sent, error } = await play([], (client) => client.chat(REQUEST, { signal: stop.signal }), { token: () => new Promise(() => {}) });
    return sent.length === 0 && error === reason ? [] : [`an abort of a token: ${error}`];
  };
  if (modules) return (await Promise.all(CASES.map(plain))).flat();
  const faults = await Promise.all([lastingly(), ...SEVERAL.map(several), atOnce(), atOnce('token'), atOnce('look'), atOnce('token', { sentBefore: false }), noted(), keptFirst(), askedOnce(), stoppedByAnother(), stoppedWaitingForItsToken(), ...CASES.map(plain), stopped(), stoppedBefore(), stoppedWithItsToken(), stoppedInTheMiddle(), caused(), named()]);
  return faults.flat();
}
