//! A server whose ledger changes between the client's look and its repeat: nothing is bought twice.

use crate::shop::Shop;
use crate::support::{Gate, Reply, Upstream};

/// Buys a video at once. The first answer is lost; the repeat has looked, and waits for `moveTo`.
const BUYS: &str = "
    let target = ORIGIN;
    Object.assign(globalThis, { posts: [], end: null });
    const moved = new Promise((done) => { globalThis.moveTo = (origin) => { target = origin; done(); }; });
    const through = async (url, options) => {
        const isPurchase = options.method === 'POST';
        if (isPurchase && posts.push(options.headers['tollgate-ledger']) === 2) await moved;
        const answer = await fetch(url.replace(ORIGIN, target), options);
        if (isPurchase && posts.length === 1) throw new TypeError('Failed to fetch');
        return answer;
    };
    createClient({ fetch: through }).video.create({ prompt: 'A lighthouse', model: 'video-a-2', duration: 8 })
        .then(({ replayed }) => { end = `bought, ${replayed}`; }, ({ code, charged }) => { end = `${code} ${charged}`; });
";

/// Money 5, with the client as it is served. A ledger in memory is another one after a restart, as one is that was restored in place.
#[test]
fn client_buys_nothing_twice_after_the_server_loses_its_ledger() {
    let shop = Shop::open(None);
    let upstream = Upstream::start(|heard| match heard.method.as_str() {
        "POST" => Reply::video(&format!("job-{}", heard.number)),
        _ => Reply::new(200, r#"{"status":"rendering"}"#),
    });
    let charges =
        || -> Vec<u64> { upstream.charges().into_iter().filter(|micros| *micros > 0).collect() };
    let settings = format!("access.allowed_origins = {}\nstore.url = \"memory\"\n", shop.listed());
    let mut gate = Gate::start(&upstream, &settings);
    let origin = format!("http://{}", gate.address());
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\"><script type=\"module\">\
         import {{ createClient }} from '{origin}/bff/client.js'; const ORIGIN = '{origin}';{BUYS}</script></html>"
    ));
    let mut page = shop.visit("/index.html", &origin);
    page.expect_errors(&["Failed to load resource"]);
    page.wait_until("posts.length === 2");
    assert_eq!(charges(), [3_000_000]);
    gate.restart();
    let origin = format!("http://{}", gate.address());
    page.allow(&origin);
    page.evaluate(&format!("moveTo('{origin}')"));
    page.wait_until("end !== null");
    assert_eq!(page.evaluate("end"), "forgotten unknown");
    assert_eq!(page.evaluate("posts.length === 2 && posts[0] === posts[1]"), true);
    assert_eq!(charges(), [3_000_000], "it was bought twice");
    gate.told_elsewhere(3_000_000);
}
