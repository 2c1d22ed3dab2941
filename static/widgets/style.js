/**
 * The look of the widgets. Text and colour scheme are those of the page around them; borders and tints are mixed from its text colour, so
 * that they suit any background. A widget never makes its container wider: its content counts for nothing there, and an invisible line of
 * short words stands for it, so that it is about 28 characters wide where nothing else decides, and fits where there is less room.
 */
export const STYLE = `
:host {
  display: block; box-sizing: border-box; min-inline-size: 0; max-inline-size: 100%; font: inherit; overflow-wrap: anywhere;
  --accent: var(--tollgate-accent, light-dark(#2f6f4f, #7fc4a0)); --on-accent: var(--tollgate-on-accent, light-dark(#fff, #06211d)); --trouble: var(--tollgate-trouble, light-dark(#b3261e, #ff9f95));
  --radius: var(--tollgate-radius, .75rem); --line: var(--tollgate-border, color-mix(in srgb, currentColor 22%, transparent));
  --tint: color-mix(in srgb, currentColor 7%, transparent);
}
:host::before { content: "${'00 '.repeat(14)}"; display: block; block-size: 0; overflow: hidden; visibility: hidden; }
:host([hidden]), [hidden] { display: none !important; }
:host(tollgate-chat) { block-size: var(--tollgate-height, 32rem); min-block-size: 15rem; }
*, ::before { box-sizing: border-box; }
.box { contain: inline-size; display: flex; flex-direction: column; block-size: 100%; overflow: hidden; border: 1px solid var(--line); border-radius: var(--radius); background: var(--tollgate-surface, transparent); }
p { margin: 0; }
.small { font-size: .85em; opacity: .85; }
.small:empty { display: none; }

/* What was said, or made */
.scroll { flex: 1; min-block-size: 0; overflow-y: auto; overscroll-behavior: contain; padding: 1rem; position: relative; }
ol { list-style: none; margin: 0; padding: 0; display: grid; grid-template-columns: minmax(0, 1fr); gap: .9rem; }
li:empty, form + ol:empty { display: none; }
form + ol { padding: 0 .75rem .75rem; }
form + ol > li { display: grid; grid-template-columns: minmax(0, 1fr); gap: .5rem; }
.empty { display: grid; gap: .2rem; place-content: center; block-size: 100%; text-align: center; text-wrap: balance; }
ol:not(:empty) ~ .empty { display: none; }
article { white-space: pre-wrap; }
article.mine { inline-size: fit-content; max-inline-size: 85%; margin-inline-start: auto; padding: .5rem .85rem; border-radius: var(--radius) var(--radius) .25rem var(--radius); unicode-bidi: plaintext; background: color-mix(in srgb, var(--accent) 16%, transparent); }
.trouble { padding: .7rem .85rem; white-space: pre-wrap; border: 1px solid var(--line); border-inline-start: 4px solid var(--trouble); border-radius: .4rem; }
.row { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; }
.row > p { flex: 1 0 100%; padding: .35rem .5rem; }
.trouble .row { margin-block-start: .5rem; }
.sign-in { display: grid; place-items: center; padding: 1.25rem 1rem; text-align: center; }
.scroll + .sign-in { border-block-start: 1px solid var(--line); }

/* The composer: one field with the text on top and what it costs below */
form { display: grid; grid-template-columns: minmax(0, 1fr); gap: .35rem; padding: .75rem; }
.field { display: grid; grid-template-columns: minmax(0, 1fr); border: 1px solid color-mix(in srgb, currentColor 50%, transparent); border-radius: var(--radius); padding: .35rem; }
.field:has(textarea:focus-visible, input:focus-visible) { border-color: var(--accent); outline: 1px solid var(--accent); }
textarea, input { font: inherit; color: inherit; inline-size: 100%; padding: .4rem .5rem; border: 0; background: none; outline: 0; }
textarea { display: block; resize: none; field-sizing: content; min-block-size: 2.9em; max-block-size: 9rem; }
:is(textarea, input)::placeholder { color: inherit; opacity: .7; }
button { font: inherit; color: inherit; min-block-size: 2.25rem; padding: 0 .85rem; border: 1px solid color-mix(in srgb, currentColor 40%, transparent); border-radius: min(var(--radius), 1.2rem); background: none; cursor: pointer; }
button:hover { background: var(--tint); }
button.main { border-color: var(--accent); background: var(--accent); color: var(--on-accent); font-weight: 600; }
.field .main { margin-inline-start: auto; white-space: nowrap; }
.pill { position: relative; display: inline-flex; align-items: center; min-inline-size: 0; max-inline-size: 100%; min-block-size: 2.25rem; padding: 0 .7rem; border-radius: 1.2rem; background: var(--tint); font-size: .9em; }
.pill > span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.pill::after { content: "\\25be" / ""; margin-inline-start: .35rem; }
.pill select { position: absolute; inset: 0; inline-size: 100%; opacity: 0; cursor: pointer; font: inherit; color: CanvasText; background: Canvas; }
.pill:has(:focus-visible), :focus-visible:not(textarea, input) { outline: 2px solid var(--accent); outline-offset: 2px; }
.picture { border-block-start: 1px solid var(--line); border-radius: 0; margin-block-end: .35rem; }

/* On its way */
.bones { display: grid; gap: .55rem; }
.bones span { block-size: .7rem; border-radius: .35rem; background: linear-gradient(90deg, var(--tint) 40%, color-mix(in srgb, currentColor 14%, transparent) 50%, var(--tint) 60%) 100% / 300% 100%; animation: shimmer 1.6s linear infinite; }
.bones span:nth-child(2) { inline-size: 85%; }
.bones span:nth-child(3) { inline-size: 55%; }
.loading { display: flex; flex-direction: column; justify-content: flex-end; gap: 1rem; padding: .75rem; min-block-size: 8rem; }
.loading .bones { padding: .25rem; }
.loading > .field { min-block-size: 5.9rem; border-color: var(--line); }
@keyframes shimmer { to { background-position-x: 0; } }
.made { display: grid; grid-template-columns: minmax(0, 1fr); gap: .5rem; }
.frame { aspect-ratio: var(--shape, 16 / 9); max-block-size: 70vh; inline-size: 100%; border-radius: calc(var(--radius) * .75); }
.bones .frame { block-size: auto; inline-size: 100%; }
video.frame { display: block; background: #000; }
progress { inline-size: 100%; block-size: .4rem; accent-color: var(--accent); }

/* What a model wrote */
.prose { white-space: normal; }
.prose p { margin: 0 0 .7em; }
.prose > :first-child { margin-block-start: 0; }
.prose > :last-child { margin-block-end: 0; }
.prose :is(pre, .table) { overflow-x: auto; max-inline-size: 100%; }
.prose .code { margin-block: .8em; border: 1px solid var(--line); border-radius: .5rem; overflow: hidden; }
.prose pre { margin: 0; padding: .6rem .75rem; background: var(--tint); }
.prose :is(pre, code) { font-size: .92em; }
.prose pre.wrapped { white-space: pre-wrap; }
.prose .code-head { display: flex; gap: .25rem; justify-content: space-between; align-items: center; font-size: .85em; padding-inline-start: .75rem; }
.prose .code-head span { margin-inline-end: auto; }
.prose .code-head button { min-block-size: 1.75rem; padding: 0 .5rem; border: 0; }
.prose .long pre { max-block-size: 24rem; overflow: hidden; }
.prose table { border-collapse: collapse; overflow-wrap: normal; }
.prose :is(th, td) { padding: .3rem .6rem; border: solid var(--line); border-width: 1px 0; text-align: start; }
.prose :is(p, li, h3, h4, h5, h6, td, th) { unicode-bidi: plaintext; }
.prose :is(ol, ul) { display: block; list-style: revert; margin: 0 0 .7em; padding-inline-start: 1.5em; }
.prose blockquote { margin: 0 0 .7em; padding-inline-start: .8rem; border-inline-start: 3px solid var(--line); }
.prose :is(h3, h4, h5, h6) { font-size: 1.1em; line-height: 1.3; margin: 1em 0 .4em; }
.prose .note button, .prose .back { border: 0; padding: 0 .2rem; min-block-size: 1.5rem; color: var(--accent); }

@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
@media (prefers-contrast: more) { :host { --line: currentColor; } .small, ::placeholder { opacity: 1 !important; } }
@media (forced-colors: active) { .field, .pill, article.mine { border: 1px solid CanvasText; } .bones span { border: 1px solid GrayText; } }
`;
