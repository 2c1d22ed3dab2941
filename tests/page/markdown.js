// Evaluated in the open page by a browser test (`Runtime.evaluate`, awaited, by value): the list of what is
// wrong with static/core/markdown.js, empty when all is well.
(async () => {
  const { src } = document.querySelector('script[type="module"]');
  const { render } = await import(src.replace('shell.js', 'core/markdown.js'));
  const faults = [];

  const shown = (text) => {
    const box = document.createElement('div');
    box.append(render(text));
    return box;
  };
  const link = (href, text) => `<a href="${href}" target="_blank" rel="noopener noreferrer nofollow">${text}</a>`;

  const RENDERED = [
    ['a *b* **c** ***d*** ~~e~~ `f`', '<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <s>e</s> <code>f</code></p>'],
    ['snake_case_name _x_ __y__', '<p>snake_case_name <em>x</em> <strong>y</strong></p>'],
    ['*a **b** c*', '<p><em>a <strong>b</strong> c</em></p>'],
    ['2 * 3 * 4', '<p>2 * 3 * 4</p>'],
    ['**unclosed', '<p>**unclosed</p>'],
    ['# A #', '<h3>A</h3>'],
    ['##### A', '<h6>A</h6>'],
    ['#nope', '<p>#nope</p>'],
    ['a  \nb', '<p>a<br>b</p>'],
    ['- a\n- b\n  - c\n', '<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>'],
    ['3. a\n4. b', '<ol start="3"><li>a</li><li>b</li></ol>'],
    ['1. a\n  - b\n2. c', '<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>'],
    ['- a\n\n- b', '<ul><li><p>a</p></li><li><p>b</p></li></ul>'],
    ['> a\n> > b', '<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>'],
    ['---', '<hr>'],
    ['\\*a\\*', '<p>*a*</p>'],
    ['``a`b``', '<p><code>a`b</code></p>'],
    ['<b>x</b> &amp; &lt;i>', '<p><b>x</b> &amp; &lt;i&gt;</p>'],
    ['a<br>b<BR/>c<br />d', '<p>a<br>b<br>c<br>d</p>'],
    ['H<sub>2</sub>O x<sup>*n*</sup>', '<p>H<sub>2</sub>O x<sup><em>n</em></sup></p>'],
    ['<sub>a</sup> </b> <b', '<p>&lt;sub&gt;a&lt;/sup&gt; &lt;/b&gt; &lt;b</p>'],
    ['<b onclick=x>a</b> <p>', '<p>&lt;b onclick=x&gt;a&lt;/b&gt; &lt;p&gt;</p>'],
    ['1&ndash;2&nbsp;% &#8364; &#x41; &#0; &#55296; &what; &', '<p>1–2&nbsp;% € A \ufffd \ufffd &amp;what; &amp;</p>'],
    ['`&lt;<br>`', '<p><code>&amp;lt;&lt;br&gt;</code></p>'],
    ['&#42;a&#42; &#60;b&#62;', '<p>*a* &lt;b&gt;</p>'],
    ['> [!NOTE]\n> a', '<blockquote class="callout is-note"><p class="callout-title">Note</p><p>a</p></blockquote>'],
    ['> [!Nope]\n> a', '<blockquote><p>[!Nope]\na</p></blockquote>'],
    ['![*a* b](data:image/png;base64,AAAA)', '<p><img src="data:image/png;base64,AAAA" alt="*a* b" decoding="async"></p>'],
    ['so ![*a* b](data:image/webp;base64,AA+/AA==) c', '<p>so <img src="data:image/webp;base64,AA+/AA==" alt="a b" decoding="async"> c</p>'],
    ['![a](data:image/svg+xml;base64,AAAA)', '<p>![a](data:image/svg+xml;base64,AAAA)</p>'],
    ['[*a* b](https://x.y "t") c', `<p>${link('https://x.y/', '<em>a</em> b')} c</p>`],
    ['see https://x.y/a_b_c.', `<p>see ${link('https://x.y/a_b_c', 'https://x.y/a_b_c')}.</p>`],
    ['[https://a.b](https://c.d)', `<p>${link('https://c.d/', 'https://a.b')}</p>`],
    ['![pic](https://x.y/p.png)', `<p>${link('https://x.y/p.png', 'pic')}</p>`],
    ['[![b](https://x.y/b)](https://x.y/c)', `<p>${link('https://x.y/c', '<span>b</span>')}</p>`],
    ['[w](https://en.org/a_(b))', `<p>${link('https://en.org/a_(b)', 'w')}</p>`],
    ['[1] and a[0](1)', '<p>[1] and a[0](1)</p>'],
    ['[w](https://x.y/(a\\)b))', `<p>${link('https://x.y/(a/)b)', 'w')}</p>`],
    ['[w]( <https://x.y>  "t" )', `<p>${link('https://x.y/', 'w')}</p>`],
    ['(https://x.y/a_(b)).', `<p>(${link('https://x.y/a_(b)', 'https://x.y/a_(b)')}).</p>`],
    ['[https://x.y/a_b_c', '<p>[https://x.y/a_b_c</p>'],
    ['<https://x.y/*a*>', `<p>${link('https://x.y/*a*', 'https://x.y/*a*')}</p>`],
    ['http:// and https://x.y', `<p>http:// and ${link('https://x.y/', 'https://x.y')}</p>`],
    ['- a\u2028b', '<ul><li>a\u2028b</li></ul>'],
    ['costs $5 and $10, or US$5', '<p>costs $5 and $10, or US$5</p>'],
    ['a [^x] b', '<p>a [^x] b</p>'],
    ['\\( unclosed', '<p>( unclosed</p>'],
  ];
  for (const [text, wanted] of RENDERED) {
    const got = shown(text).innerHTML;
    if (got !== wanted) faults.push(`${text} became ${got}, not ${wanted}`);
  }

  // Formulas become MathML; what is not known stays source.
  const { formula } = await import(src.replace('shell.js', 'core/math.js'));
  const FORMULAS = [
    ['a^2 + b^2', '<msup><mi>a</mi><mn>2</mn></msup><mo>+</mo><msup><mi>b</mi><mn>2</mn></msup>'],
    ['\\frac{1}{2}', '<mfrac><mn>1</mn><mn>2</mn></mfrac>'],
    ['\\sqrt[3]{x}', '<mroot><mi>x</mi><mn>3</mn></mroot>'],
    ['x_i^{n+1}', '<msubsup><mi>x</mi><mi>i</mi><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msubsup>'],
    ['\\alpha \\le 3.14', '<mi>α</mi><mo>≤</mo><mn>3.14</mn>'],
    ['\\text{if } x', '<mtext>if&nbsp;</mtext><mi>x</mi>'],
    ['\\mathbb{R}', '<mi>ℝ</mi>'],
    ["f'", '<msup><mi>f</mi><mo>′</mo></msup>'],
    ['<img src=x>', '<mo>&lt;</mo><mi>i</mi><mi>m</mi><mi>g</mi><mi>s</mi><mi>r</mi><mi>c</mi><mo>=</mo><mi>x</mi><mo>&gt;</mo>'],
  ];
  for (const [tex, wanted] of FORMULAS) {
    const got = formula(tex, false)?.innerHTML;
    if (got !== wanted) faults.push(`${tex} became ${got}, not ${wanted}`);
  }
  for (const tex of ['\\unheardof', '{', '}', 'x^', '\\left( x', '\\begin{matrix} a', '\\frac{1}', 'a^b^c', '{'.repeat(60) + '}'.repeat(60),
    ...['\\boxed', '\\not', '\\frac1', '\\sqrt', '\\hat', '\\mathbf', '\\mathit', '\\overset1', '\\xrightarrow', '\\underline'].map((name) => `${name.repeat(60)} x`),
    `\\begin{matrix}${'&'.repeat(100)}\\end{matrix}`]) {
    if (formula(tex, true) !== null) faults.push(`${tex.slice(0, 40)} became a formula`);
  }
  for (const [tex, count] of [['\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}', 4], ['\\begin{cases} 1 & x \\\\ 2 & y \\end{cases}', 4]]) {
    if (formula(tex, true)?.querySelectorAll('mtd').length !== count) faults.push(`${tex} has not ${count} cells`);
  }
  const rendered = async (text) => {
    const box = shown(text);
    for (let waits = 0; waits < 100 && !box.querySelector('math'); waits += 1) await new Promise((done) => { setTimeout(done, 10); });
    return box;
  };
  for (const text of ['so \\(a^2\\) is', 'so $a^2$ is', '$$a^2$$', 'so\n\\[\na^2\n\\]\nis', '> $$\n> a^2\n> $$', '| $a^2$ |\n|---|', '\\begin{align}\na^2 &= b\n\\end{align}']) {
    if (!(await rendered(text)).querySelector('math msup')) faults.push(`${text} is no formula`);
  }
  if (!formula(`${'\\boxed\\hat'.repeat(6)} x`, true)?.querySelector('mover mi')) faults.push('arguments of arguments are no formula');
  const short = shown('|a|b|c|\n|-|-|-|\n|1|2|\n|1|\n');
  if ([...short.querySelectorAll('tr')].map((row) => [...row.children].reduce((sum, cell) => sum + cell.colSpan, 0)).join() !== '3,3,3') faults.push('short rows are not filled');
  const noted = shown('a[^1] b[^two] c[^1]\n\n[^1]: first *note*\n[^two]: second\n');
  if (noted.querySelectorAll('.footnotes li').length !== 2) faults.push('there are not two footnotes');
  if ([...noted.querySelectorAll('sup')].map(({ textContent }) => textContent).join() !== '1,2,1') faults.push('the marks of footnotes are wrong');
  if (!noted.querySelector('.footnotes li em')) faults.push('a footnote is not rendered');

  if (!shown(`![big](data:image/png;base64,${'A'.repeat(100_000)})`).querySelector('img')) faults.push('a large picture is text');

  const { tokens } = await import(src.replace('shell.js', 'core/highlight.js'));
  const parts = tokens('--- a\n@@ -1 +1 @@\n-b\n+c\n d', 'diff').map(({ kind }) => kind).join();
  if (parts !== 'comment,comment,deleted,inserted') faults.push(`a diff has ${parts}`);

  if (!shown('```js\nlet a = 1;\n  <b>').textContent.includes('let a = 1;\n  <b>')) faults.push('an unclosed fence lost text');

  const EVIL = [
    '[x](javascript:alert(1))', '[x](JaVaScRiPt:alert(1))', '[x](java\nscript:alert(1))', '[x](java\tscript:alert(1))',
    '[x](\u0001javascript:alert(1))', '[x](data:text/html,<script>)', '[x](vbscript:x)', '[x](//evil)', '[x](/local)',
    '[x](file:///etc)', '[x](blob:https://x)', '<javascript:alert(1)>', '<img src=x onerror=alert(1)>',
    '<script>alert(1)</script>', '<svg/onload=alert(1)>', '![x](javascript:alert(1))', '[x](<javascript:alert(1)>)',
    '[x](&#106;avascript:alert(1))', '<a href="javascript:x">', '```"><script>\nx', '| <img src=x> |\n|---|\n| <iframe> |',
    '[x](https://a"onmouseover="alert(1))', '# <style>*{}</style>', '[x](feed:javascript:alert(1))',
    '![x](https://evil.example/pixel.png)',
  ];
  const FETCHES = ['SCRIPT', 'IMG', 'IFRAME', 'STYLE', 'SVG', 'OBJECT', 'EMBED', 'LINK', 'VIDEO', 'AUDIO'];
  for (const text of EVIL) {
    for (const made of shown(text).querySelectorAll('*')) {
      if (FETCHES.includes(made.tagName.toUpperCase())) faults.push(`${text} made a ${made.tagName}`);
      for (const { name } of made.attributes) if (/^(on|style|src)/.test(name)) faults.push(`${text} set ${name}`);
      if (made.tagName === 'A' && !/^(https?|mailto):/.test(made.getAttribute('href'))) faults.push(`${text} links to ${made.href}`);
    }
  }
  return faults;
})()
