//! How fast the page is, by the browser's own performance entries. The figures are reported; what is asserted is what was
//! rendered. `just page-speed` runs this alone, with an answer of 10,000 lines as in `./test long`.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::gate::Gate;
use crate::page::Page;
use crate::page_load::begin_with;

/// How much slower the browser computes than this machine can.
const SLOWDOWN: u32 = 4;
/// Notes the first paint, when the page can sell, and every task of more than 50 ms.
const OBSERVE: &str = "(() => {
    const seen = globalThis.seen = { paint: 0, interactive: 0, long: [] };
    const observe = (type, note) => new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type, buffered: true });
    observe('paint', ({ name, startTime }) => { if (name === 'first-contentful-paint') seen.paint = startTime; });
    observe('longtask', ({ duration }) => seen.long.push(duration));
    new MutationObserver((_, observer) => {
        if (!document.querySelector('#composer [type=submit]')?.textContent.includes('$')) return;
        seen.interactive = performance.now();
        observer.disconnect();
    }).observe(document, { childList: true, subtree: true, characterData: true });
})()";
/// Waits until the browser has had nothing to do for a while.
const SETTLED: &str = "new Promise((done) => {
    let quiet = 0;
    const look = ({ timeRemaining, didTimeout }) => {
        quiet = didTimeout ? 0 : quiet + 1;
        if (quiet > 20) done(); else requestIdleCallback(look, { timeout: 100 });
    };
    requestIdleCallback(look);
})";
/// Keeps conversations as the page does: `COUNT` with two turns each, the newest with this `ANSWER`.
const KEEP: &str = "new Promise((done) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        const writing = base.transaction('conversations', 'readwrite');
        const now = Date.now();
        for (let number = 0; number < COUNT; number += 1) {
            const turns = [0, 1].map((place) => ({ key: `${number} ${place}`, question: `Question ${place}`,
                answer: number ? 'Some words of an answer. '.repeat(20) : ANSWER, model: 'eta-5', costMicros: 1, at: 1e12,
                ledger: null, state: 'done', problem: null }));
            writing.objectStore('conversations').put({ id: `${number}`, title: `Number ${number}`, at: now - number * 36e5, turns: number ? turns : turns.slice(1), aside: [] });
        }
        writing.oncomplete = () => { base.close(); done(); };
    };
})";

/// Loads the page on a slow processor until `shown`, and prints what the browser noted.
fn report(page: &Page, what: &str, shown: &str) {
    page.call("Emulation.setCPUThrottlingRate", json!({"rate": SLOWDOWN}));
    page.reload();
    page.wait_until("seen.interactive > 0 && seen.paint > 0");
    page.wait_until(shown);
    page.evaluate(SETTLED);
    let seen = page.evaluate("seen");
    page.call("Emulation.setCPUThrottlingRate", json!({"rate": 1}));
    let millis = |value: &Value| value.as_f64().unwrap_or_default().round();
    let long: Vec<f64> = seen["long"].as_array().into_iter().flatten().map(millis).collect();
    // Past the harness, which shows what is printed only when a test fails.
    let _ = writeln!(
        io::stderr(),
        "page, {what}: first paint {} ms, interactive {} ms, {} tasks over 50 ms, the longest {} ms",
        millis(&seen["paint"]),
        millis(&seen["interactive"]),
        long.len(),
        long.iter().copied().fold(0.0, f64::max),
    );
}

/// The lines of the long answer.
const LINES: usize = 10_000;

fn keep(page: &Page, count: usize, answer: &str) {
    page.evaluate(
        &KEEP.replace("COUNT", &count.to_string()).replace("ANSWER", &json!(answer).to_string()),
    );
}

/// An answer of so many lines with everything that models write.
fn long_answer(lines: usize) -> String {
    let lines = (0..lines).map(|line| match line % 25 {
        0 => format!("## Part {line}\n"),
        1..=6 => format!("- an item **{line}** with `code`"),
        7 | 12 | 18 => String::new(),
        8..=11 => format!("Line {line} of a text."),
        13 => "```js".to_owned(),
        14..=16 => format!("const a{line} = {line};"),
        17 => "```".to_owned(),
        19 => "| a | b |".to_owned(),
        20 => "|---|---|".to_owned(),
        _ => format!("| {line} | b |"),
    });
    lines.chain(["\n\nThe end.".to_owned()]).collect::<Vec<_>>().join("\n")
}

#[test]
fn page_reports_paint_interactivity_and_long_tasks() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.resize(1280, 800);
    begin_with(&page, OBSERVE);
    page.goto(&gate.origin);
    page.wait_until("seen.interactive > 0");
    report(&page, "no conversations", "true");

    keep(&page, 1, &long_answer(LINES));
    let end = "document.querySelector('#turns .prose')?.lastElementChild?.lastElementChild?.textContent === 'The end.'";
    report(&page, &format!("an answer of {LINES} lines"), end);
    let rows = page.evaluate("document.querySelectorAll('#turns .prose tr').length");
    assert!(rows.as_u64().is_some_and(|rows| rows > LINES as u64 / 10), "{rows} rows");

    keep(&page, 500, "Good morning.");
    let all = "document.querySelectorAll('#conversations li').length === 300";
    report(&page, "500 conversations", all);
    page.wait_for_text("200 older conversations are not listed");
}

#[test]
fn long_answer_is_completed_in_steps_and_reads_as_one() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.wait_until("document.querySelector('#composer [type=submit]').textContent.includes('$')");
    let numbers = |mark: &str| {
        (1..=250)
            .map(|number| format!("{number}{mark} line {number}"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let table = (1..=250).map(|row| format!("| {row} | row |\n")).collect::<String>();
    let answer = format!(
        "{}\n\n{}\n\n| a | b |\n|---|---|\n{table}\n```\n{}\n```\n\nThe end[^1].\n\n[^1]: A note.",
        numbers("."),
        numbers(" is"),
        numbers(" in code,")
    );
    keep(&page, 1, &answer);
    page.reload();
    page.wait_until("document.querySelector('#turns .footnotes') !== null");
    let numbers_of = |selector: &str| {
        format!(
            "[...document.querySelectorAll('#turns .prose {selector}')].map(({{ start, children }}) => [start, children.length].join()).join(' ')"
        )
    };
    assert_eq!(page.evaluate(&numbers_of("ol:not(.footnotes ol)")), "1,100 101,100 201,50");
    let count = |selector: &str| {
        page.evaluate(&format!("document.querySelectorAll('#turns .prose {selector}').length"))
    };
    assert_eq!(count("tbody tr"), 250);
    assert_eq!(count("thead"), 3);
    let code = "document.querySelector('#turns .prose pre').textContent.split('\\n').length";
    assert_eq!(page.evaluate(code), 250);
    // Chromium renders what is near the screen; only for a screen reader does it describe the rest, too.
    page.evaluate("document.querySelector('#turns .code.long').scrollIntoView()");
    page.find(("button", "Show all 250 lines")).click();
    assert_eq!(page.evaluate(code), 250);
    let paragraphs = "[...document.querySelectorAll('#turns .prose p')].filter(({ textContent }) => textContent.includes('line 1')).length > 0";
    assert_eq!(page.evaluate(paragraphs), true);
}
