//! Starting pictures: dropped, pasted or chosen, encoded by the page, and safe where they are stored.

use serde_json::{Value, json};

use crate::appearance::{VIOLATIONS, load_axe};
use crate::gate::Gate;
use crate::markdown::{blocks, read, section};
use crate::page::Page;
use crate::shop::Shop;
use crate::videos::{CONFIRM, GENERATE, IS_READY, PROMPT, choose};
use crate::watch::Tamper;

const HOME: &str = "https://chat.example.com/bff/pictures/";
const ADDRESS: &str = "document.getElementById('video-image').value";
const FAULT: &str = "document.getElementById('video-image-fault').textContent";
const CHOOSE: (&str, &str) = ("button", "Choose a picture");
const REMOVE: (&str, &str) = ("button", "Remove the picture");

fn start(more: &[(&str, &str)]) -> Gate {
    let settings = [
        ("TOLLGATE_STORE__URL", "sqlite:tollgate.db"),
        ("TOLLGATE_SERVER__PUBLIC_URL", "https://chat.example.com"),
        ("TOLLGATE_PAGE__PICTURES", "true"),
    ];
    Gate::start_with(&[&settings, more].concat())
}

fn open(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    page.goto(&format!("{}/#video", gate.origin));
    page.wait_until("document.querySelector('#video-picture input[type=file]') !== null");
    page
}

/// Opens the panel of the starting picture, and types an address into it.
fn fill_address(page: &Page, address: &str) {
    page.find(("button", "Picture to start from…")).click();
    page.find(CHOOSE);
    page.find(("textbox", "Picture to start from…")).fill(address);
}

/// Makes a file `photo` in the page: red at the left and blue at the right, turned by its EXIF data,
/// which say more besides.
fn make_photo(page: &Page, width: u32, height: u32) {
    page.evaluate(&format!(
        "(async () => {{
            const canvas = new OffscreenCanvas({width}, {height});
            const context = canvas.getContext('2d');
            context.fillStyle = 'red';
            context.fillRect(0, 0, {width} / 2, {height});
            context.fillStyle = 'blue';
            context.fillRect({width} / 2, 0, {width} / 2, {height});
            const plain = new Uint8Array(await (await canvas.convertToBlob({{ type: 'image/jpeg' }})).arrayBuffer());
            // Orientation 6: to be turned by 90 degrees to the right.
            const exif = [...'Exif'].map((letter) => letter.charCodeAt(0)).concat([0, 0, 0x4d, 0x4d, 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0],
                [...'HOME ADDRESS'].map((letter) => letter.charCodeAt(0)));
            const segment = [0xff, 0xe1, 0, exif.length + 2, ...exif];
            window.photo = new File([plain.slice(0, 2), new Uint8Array(segment), plain.slice(2)], 'photo.jpg', {{ type: 'image/jpeg' }});
            return (await window.photo.text()).includes('HOME ADDRESS');
        }})()"
    ));
}

/// Gives the page this file by `kind`: on the body, as a person may drop it anywhere.
fn give(page: &Page, kind: &str, file: &str) {
    let event = match kind {
        "drop" => "DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true })",
        _ => "ClipboardEvent('paste', { clipboardData: files, bubbles: true, cancelable: true })",
    };
    let give = format!(
        "(() => {{ const files = new DataTransfer(); files.items.add({file}); return document.body.dispatchEvent(new {event}); }})()"
    );
    assert_eq!(page.evaluate(&give), false, "the browser would leave the page");
}

fn wait_for_picture(page: &Page) -> String {
    page.wait_until(&format!("{ADDRESS}.startsWith('{HOME}') && document.querySelector('#video-slot img')?.naturalWidth > 0"));
    page.evaluate(ADDRESS).as_str().expect("an address").replace("https://chat.example.com", "")
}

#[test]
fn uploaded_photo_loses_its_metadata_and_becomes_a_video() {
    let gate = start(&[]);
    let page = open(&gate);
    make_photo(&page, 3_000, 1_000);
    give(&page, "drop", "photo");
    let path = wait_for_picture(&page);
    let stored = page.evaluate(&format!(
        "(async () => {{
            const blob = await (await fetch('{path}')).blob();
            const bitmap = await createImageBitmap(blob);
            const context = new OffscreenCanvas(1, 1).getContext('2d');
            context.drawImage(bitmap, 0, 0, 1, 1, 0, 0, 1, 1);
            const [red, , blue] = context.getImageData(0, 0, 1, 1).data;
            const text = await blob.text();
            return {{ type: blob.type, sides: [bitmap.width, bitmap.height], hides: text.includes('Exif') || text.includes('HOME'), isRed: red > 200 && blue < 50 }};
        }})()"
    ));
    assert_eq!(
        stored,
        json!({"type": "image/jpeg", "sides": [683, 2048], "hides": false, "isRed": true})
    );
    load_axe(&page);
    assert_eq!(page.evaluate(VIOLATIONS), "");
    page.screenshot("video-picture-uploaded");
    page.find(PROMPT).fill("It begins to rain");
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.wait_until(IS_READY);
    assert_eq!(gate.sold(), 1);
    choose(&page, "It begins to rain", "Use again");
    assert_eq!(wait_for_picture(&page), path);
}

#[test]
fn pasted_and_chosen_pictures_survive_a_reload_and_can_be_removed() {
    let gate = start(&[]);
    let page = open(&gate);
    make_photo(&page, 30, 20);
    give(&page, "paste", "photo");
    let first = wait_for_picture(&page);
    page.reload();
    assert_eq!(wait_for_picture(&page), first);
    make_photo(&page, 20, 30);
    page.evaluate(
        "(() => { const files = new DataTransfer(); files.items.add(photo); const input = document.querySelector('#video-picture input');
            input.files = files.files; input.dispatchEvent(new Event('change')); })()",
    );
    page.wait_until(&format!("{ADDRESS}.startsWith('{HOME}') && !{ADDRESS}.endsWith('{first}')"));
    page.find(REMOVE).click();
    assert_eq!(page.evaluate(ADDRESS), "");
    assert!(!page.shows(REMOVE));
    assert_eq!(page.evaluate("document.activeElement.id"), "video-slot");
}

#[test]
fn refused_picture_is_explained_and_keeps_the_field() {
    let gate = start(&[]);
    let page = open(&gate);
    fill_address(&page, "https://example.com/cat.png");
    give(&page, "drop", "new File(['<svg/>'], 'x.svg', { type: 'image/svg+xml' })");
    page.wait_until(&format!(
        "{FAULT} === 'Not uploaded: this browser cannot read it as a picture.'"
    ));
    assert_eq!(page.evaluate(ADDRESS), "https://example.com/cat.png");
    let full = "{\"code\":\"rate_limited\",\"charged\":\"no\",\"detail\":\"your pictures of the last 24 hours take up 64 MiB, the maximum\"}";
    let problem = vec![("Content-Type", "application/problem+json")];
    page.tamper("*/bff/pictures", Tamper::Answer(429, problem, full));
    make_photo(&page, 30, 20);
    give(&page, "drop", "photo");
    page.wait_until(&format!("{FAULT}.includes('take up 64 MiB')"));
    page.stop_tampering();
    give(&page, "drop", "photo");
    wait_for_picture(&page);
    assert_eq!(page.evaluate(FAULT), "");
}

#[test]
fn expired_picture_is_not_ordered() {
    let gate = start(&[]);
    let page = open(&gate);
    page.find(PROMPT).fill("It begins to rain");
    let expired = format!("{HOME}AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    fill_address(&page, &expired);
    page.find(GENERATE).click();
    page.wait_until(&format!("{FAULT} === 'This picture has expired. Choose it again.'"));
    assert!(!page.shows(CONFIRM));
    assert_eq!(gate.sold(), 0);
}

#[test]
fn order_waits_for_the_picture_that_is_uploaded() {
    let gate = start(&[]);
    let page = open(&gate);
    page.find(PROMPT).fill("It begins to rain");
    make_photo(&page, 30, 20);
    // The upload waits for the test.
    page.evaluate(
        "(() => { const { fetch } = window; window.held = new Promise((go) => { window.release = go; });
            window.fetch = async (address, request) => { if (request?.method === 'POST') await held; return fetch(address, request); }; })()",
    );
    give(&page, "drop", "photo");
    page.find(GENERATE).click();
    page.wait_until(&format!("{FAULT} === 'Wait until the picture is uploaded.'"));
    assert!(!page.shows(CONFIRM));
    page.evaluate("release()");
    wait_for_picture(&page);
    page.find(GENERATE).click();
    page.find(CONFIRM);
}

#[test]
fn script_in_a_picture_never_runs() {
    let shop = Shop::open(None);
    let gate = start(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    let mut page = open(&gate);
    page.expect_errors(&["Failed to load module script"]);
    // A comment of a JPEG, whose first bytes are also a name and an assignment in a script.
    let upload = "(async () => {
        const canvas = new OffscreenCanvas(1, 1);
        canvas.getContext('2d');
        const plain = new Uint8Array(await (await canvas.convertToBlob({ type: 'image/jpeg' })).arrayBuffer());
        const script = [...'=1;window.ran=true;<script>window.ran=true</script>'].map((letter) => letter.charCodeAt(0));
        const file = new Blob([plain.slice(0, 2), new Uint8Array([0xff, 0xfe, 0, script.length + 2, ...script]), plain.slice(2)], { type: 'image/jpeg' });
        const answer = await fetch('/bff/pictures', { method: 'POST', body: file });
        return (await answer.json()).url;
    })()";
    let url = page.evaluate(upload).as_str().expect("stored").to_owned();
    let path = url.replace("https://chat.example.com", "");
    assert_eq!(page.evaluate(&format!("import('{path}').then(() => true, () => false)")), false);
    let markup = format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\"><script>
            outcomes = []; const tell = (event) => outcomes.push(event.type);
            for (const name of ['script', 'img', 'iframe']) {{
                const made = document.createElement(name);
                made.onload = made.onerror = tell;
                made.src = '{}{path}';
                document.documentElement.append(made);
            }}
        </script></html>",
        gate.origin
    );
    shop.show("/index.html", &markup);
    let mut other = shop.visit("/index.html", &gate.origin);
    // That the browser blocks it is what is wanted.
    other.expect_errors(&[
        "Failed to load resource",
        "ERR_BLOCKED",
        "ResponseWasBlockedByORB",
        "frame",
        "Refused",
        "MIME",
    ]);
    other.wait_until("outcomes.length >= 2");
    assert_eq!(
        other.evaluate("[window.ran ?? null, outcomes.filter((one) => one === 'error').length]"),
        json!([null, 2])
    );
    assert_eq!(page.evaluate("window.ran ?? null"), Value::Null);
}

#[test]
fn documented_upload_starts_a_video() {
    let shop = Shop::open(None);
    let gate = start(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    let text = read("docs/guide/web.md");
    let block = blocks(section(&text, "Pictures"), "js").concat();
    let block = block.replace("http://127.0.0.1:8080", &gate.origin);
    let markup = "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\"><input type=\"file\">
        <script type=\"module\">
            const canvas = new OffscreenCanvas(8, 8);
            canvas.getContext('2d');
            const files = new DataTransfer();
            files.items.add(new File([await canvas.convertToBlob()], 'a.png', { type: 'image/png' }));
            document.querySelector('input').files = files.files;
            await import('/block.js');
            window.done = true;
        </script></html>";
    shop.show("/block.js", &block);
    shop.show("/index.html", markup);
    let page = shop.visit("/index.html", &gate.origin);
    page.wait_until("window.done === true");
    assert_eq!(gate.sold(), 1);
}
