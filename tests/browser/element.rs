//! An element of the page, clicked and typed into with real mouse and key events.

use serde_json::{Value, json};

use crate::page::Page;

/// Whether a click at this place would meet the element itself (or its label), and nothing that covers it.
const IS_HIT: &str = "function (x, y) {
    // Gone from the page, it has no place in it.
    if (!this.isConnected) return false;
    const hit = this.getRootNode().elementFromPoint(x, y);
    return this.contains(hit) || hit?.closest('label')?.control === this;
}";

const TWO_FRAMES: &str =
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";

/// Notes that a click met the element: a page that moves it away between the press and the release has met none.
const WATCH_FOR_A_PRESS: &str = "function () {
    globalThis.pressed = false;
    const note = () => { globalThis.pressed = true; };
    (this.labels?.length ? [this, ...this.labels] : [this]).forEach((one) =>
        one.addEventListener('click', note, { capture: true, once: true }));
}";

/// An element that was found by role and name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'p> {
    page: &'p Page,
    node: i64,
    name: (&'p str, &'p str),
}

impl<'p> Element<'p> {
    pub(crate) fn new(page: &'p Page, node: i64, name: (&'p str, &'p str)) -> Self {
        Self { page, node, name }
    }

    /// Clicks its middle, once that is in view and nothing covers it.
    ///
    /// A page may redraw itself between a look and a press: then the press meets nothing, or what has taken the
    /// element's place, and the element that now has its name is pressed. What was pressed is never pressed twice.
    pub(crate) fn click(self) {
        let mut element = self;
        let clicked = self.page.patiently(|| {
            element = element.again();
            element.press_once()
        });
        clicked.unwrap_or_else(|| panic!("covered, or not shown: {:?}", self.name));
    }

    /// The element itself, or the one that stands for it now.
    fn again(self) -> Self {
        let connected = self.try_ask("function () { return this.isConnected }", &[]);
        if connected == Some(json!(true)) {
            return self;
        }
        self.page.look_for(self.name).unwrap_or(self)
    }

    fn press_once(self) -> Option<()> {
        // A key or a layout may still be scrolling the page: the middle has to stay where it is.
        let middle = self.reachable_middle()?;
        self.page.evaluate(TWO_FRAMES);
        if self.reachable_middle() != Some(middle) {
            return None;
        }
        self.try_ask(WATCH_FOR_A_PRESS, &[])?;
        let (x, y) = middle;
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": 1});
            self.page.call("Input.dispatchMouseEvent", event);
        }
        // A click may have led to another page, where nothing is noted: only a clear no is a miss.
        let pressed =
            self.page.ask("Runtime.evaluate", json!({"expression": "globalThis.pressed"}));
        let missed = pressed.is_ok_and(|answer| answer["result"]["value"] == false);
        (!missed).then_some(())
    }

    /// Clicks it and types.
    pub(crate) fn fill(self, text: &str) {
        self.click();
        self.page.type_text(text);
    }

    /// Chooses, with the arrow keys, the first option of a `<select>` whose text contains `part`.
    pub(crate) fn choose(self, part: &str) {
        self.page.call("DOM.focus", json!({"backendNodeId": self.node}));
        let ask = "function (part) {
            return [...this.options].findIndex((option) => option.text.includes(part)) - this.selectedIndex;
        }";
        let steps = self.call(ask, &[json!(part)]).as_i64().expect("a number");
        let key = if steps > 0 { "ArrowDown" } else { "ArrowUp" };
        (0..steps.abs()).for_each(|_| self.page.press(key));
        let chosen = self.call("function () { return this.selectedOptions[0]?.text }", &[]);
        assert!(chosen.as_str().is_some_and(|text| text.contains(part)), "{chosen} is not {part}");
    }

    /// What was typed into it.
    pub(crate) fn value(self) -> String {
        let value = self.call("function () { return this.value }", &[]);
        value.as_str().unwrap_or_default().to_owned()
    }

    fn reachable_middle(self) -> Option<(i64, i64)> {
        let _ = self.try_call("DOM.scrollIntoViewIfNeeded", json!({}));
        let model = self.try_call("DOM.getBoxModel", json!({}))?;
        let corners: Vec<i64> =
            model["model"]["border"].as_array()?.iter().filter_map(whole).collect();
        let [left, top, _, _, right, bottom, ..] = corners.as_slice() else { return None };
        let (x, y) = (left.midpoint(*right), top.midpoint(*bottom));
        (self.try_ask(IS_HIT, &[json!(x), json!(y)])? == true).then_some((x, y))
    }

    /// Calls a JavaScript function with the element as `this`.
    fn call(self, function: &str, arguments: &[Value]) -> Value {
        self.try_ask(function, arguments).unwrap_or_else(|| panic!("{:?} is gone", self.name))
    }

    /// The same, of an element that may be gone.
    fn try_ask(self, function: &str, arguments: &[Value]) -> Option<Value> {
        let object = self.try_call("DOM.resolveNode", json!({}))?;
        let arguments: Vec<_> = arguments.iter().map(|value| json!({"value": value})).collect();
        let call = json!({"functionDeclaration": function, "arguments": arguments,
            "objectId": object["object"]["objectId"], "returnByValue": true});
        let mut answer = self.page.ask("Runtime.callFunctionOn", call).ok()?;
        assert_eq!(answer.get("exceptionDetails"), None, "{function}");
        Some(answer["result"]["value"].take())
    }

    fn try_call(self, method: &str, mut params: Value) -> Option<Value> {
        params["backendNodeId"] = json!(self.node);
        self.page.ask(method, params).ok()
    }
}

fn whole(number: &Value) -> Option<i64> {
    number.as_f64().map(|number| number.round() as i64)
}
