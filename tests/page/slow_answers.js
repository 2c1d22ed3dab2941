// Evaluated in the open page by a browser test: how many checks there are. The test then calls `globalThis.checks[number]()`
// (awaited, by value) for each: the list of what is wrong with how slowly the page renders bad answers, empty when all is well.
(async () => {
  const { src } = document.querySelector('script[type="module"]');
  const load = (name) => import(src.replace('shell.js', `core/${name}.js`));
  const [{ prose, render }, { formula }, { tokens }] = await Promise.all(['markdown', 'math', 'highlight'].map(load));

  // Each of these hangs a parser that looks for partners again and again.
  const many = (text) => (length) => text.repeat(Math.ceil(length / text.length));
  const nested = (open, close) => (length) => open.repeat(length / (open.length + close.length)) + close.repeat(length / (open.length + close.length));
  const numbers = (length, text) => Array.from({ length }, (_, number) => text(number));
  const HEAVY = [
    ...[
      '*', '_', '`', '[', '![', ']', '](', '<', '&', '$', '$$', '|', '>', '#', '-', '\\', '\\(', '\\[', '"', '\n', '\t', 'h', '.', ')', '{',
      '*a ', '*a_', '*a*', 'a*', 'a_ ', '**a *b ', '**a*b', 'a**b*', '*a **b', '***a* ', '~~a', '*~~_[', '*[a', '*a](', '**"a"**',
      '[a](', '[a](b', '[a](b[a](b)', '[a](\\)', '[a](<b', '[a](b "', '[a](b "[a](b \'', '[a](https://a/)', '[[a](https://a/)](b)', '[![a](',
      '`a ', '`a``', '``a` ', '$a ', '$a', '$a$ ', '$$a', '\\(a', '\\(a\\)', '\\[a\n', '$$\na\n', '\\begin{align}\n', '\\[ \\( ',
      'http://', 'http://a ', 'http://a)', 'http://a]', '[http://a]', 'http://a(', 'http://a.', '<http://a', '<mailto:a', 'mailto:a ',
      '<b>x</b>', '<b><i>', '</b>', '<br>', '<sub>x', '&lt;', '&#1', '&am', '![](data:image/png;base64,A', '![a](data:image/png;base64,AAAA)',
      '> [!NOTE]\n', '[^1]', '[^1', '[^1]: a\n', '[^1]: [^1]\n', '&amp;', '<b>', '<!--',
      '> a\n', '> - ', '- ', '1. ', '- a\n', '- a\n\n', '* a\n+ a\n', '- [ ] a\n', 'a\n', 'a  \n', '# a\n', '---\n', '```\n', '~~~\n', '- ```\n', 'a\n> b\n', '- a\nb\n',
      '|a|b|\n|-|-|\n', '|a\n', '|a|\n|-|\n|', '-|', '|`', '\\|',
    ].map(many),
    nested('[', ']'), nested('[', '](https://a/)'), nested('*a ', ' a*'), nested('**a ', ' a**'), nested('*a _b ', ' b_ a*'), nested('_(', ')_'), nested('*[', '](https://a/)*'),
    nested('<b>', '</b>'), nested('<b><i>a', '</b></i>'), nested('*<b>a', '</b>*'),
    (length) => '*'.repeat(length / 2) + 'a** '.repeat(length / 8),
    (length) => '['.repeat(length / 2) + 'http://a]'.repeat(length / 18),
    (length) => '['.repeat(length / 3) + '](\\)'.repeat(length / 6),
    (length) => numbers(Math.sqrt(2 * length), (number) => '`'.repeat(number + 1)).join('a'),
    (length) => numbers(Math.sqrt(length), (number) => `${' '.repeat(number * 2)}- a`).join('\n'),
    (length) => numbers(Math.sqrt(2 * length), (number) => `${'>'.repeat(number)} a`).join('\n'),
    (length) => `${numbers(length / 24, (number) => `[^${number}]`).join(' ')}\n\n${numbers(length / 24, (number) => `[^${number}]: a`).join('\n')}`,
    (length) => `[a](${' '.repeat(length)}`, many(`[a](${' '.repeat(2040)}`), many(`http://a${'.'.repeat(2030)}x `), many(`${'http://a)'.repeat(200)} `),
    (length) => `a${' '.repeat(length)}b`, (length) => `# ${' '.repeat(length)}x`, (length) => `- ${' '.repeat(length)}x\u2028`, (length) => `[^a]: ${' '.repeat(length)}x\u2028`,
    (length) => `${'* '.repeat(length / 2)}x`, (length) => `|a\n---${' '.repeat(length)}x`, (length) => `\`\`\`${' '.repeat(length)}\``, (length) => `${'~'.repeat(length)}\``,
    (length) => `- a\n${'\n'.repeat(length)}b`, (length) => `${'\\[a\n'.repeat(length / 4)}\\] x`, (length) => `https://a${'.'.repeat(length)}x`,
    (length) => `${'|'.repeat(length / 3)}\n${'-|'.repeat(length / 3)}`, (length) => `${'|a'.repeat(length / 4)}\n${'|-'.repeat(length / 4)}`,
    (length) => `${'|a'.repeat(64)}\n${'|-'.repeat(64)}\n${'a\n'.repeat(length / 8)}`, (length) => `${'|a'.repeat(64)}\n${'|-'.repeat(64)}\n${`${'|a'.repeat(64)}\n`.repeat(length / 129)}`,
  ];
  const FORMS = [
    ...['\\boxed', '\\not', '\\frac', '\\sqrt', '\\sqrt[', '\\hat', '\\mathbf', '\\left(', '\\begin{matrix}', '^', 'x^', 'x^{', '{', '}', '\\frac{', '\\text{', "'", '1', '1,', '&', '\\\\', '\\big(', '\\sum_'].map(many),
    nested('\\frac{1}{', '}'), nested('\\frac{', '}{1}'), nested('\\left(', '\\right)'), nested('\\begin{matrix}', '\\end{matrix}'), nested('x^{', '}'), nested('\\boxed{', '}'),
    (length) => `\\begin{matrix}${'a&'.repeat(length / 2)}\\end{matrix}`, (length) => `\\begin{matrix}${'a\\\\'.repeat(length / 3)}\\end{matrix}`,
    many(`${'\\not{'.repeat(18)}x${'}'.repeat(18)}`), many(`${'\\mathbf{'.repeat(18)}x${'}'.repeat(18)}`),
  ];
  const CODE = ['"', "'", "\\'", '`', '/*', '"""', '<!--', '"a', '1', '1.', '1e1', 'a.', '"\\', '< ', '//\n'].map(many)
    .flatMap((heavy) => ['js', 'python', 'bash', 'html', 'diff'].map((language) => [heavy, language]));
  // A text of eight times the length may take as long as eight texts. Both are equally slow on a busy machine, so few tries suffice.
  const time = (act, text, times) => {
    const from = performance.now();
    for (let done = 0; done < times; done += 1) act(text);
    return performance.now() - from;
  };
  const isSlow = (act, heavy, length) => {
    const [part, whole] = [heavy(length / 8), heavy(length)];
    for (let tries = 0; tries < 5; tries += 1) {
      const taken = time(act, whole, 1);
      if (taken < 100 || (taken < 5_000 && taken < 4 * time(act, part, 8))) return false;
    }
    return true;
  };
  const named = (text) => JSON.stringify(text.slice(0, 40));
  const check = (what, act, heavy, length) => () => (isSlow(act, heavy, length) ? [`${what} is slow: ${named(heavy(400))}`] : []);

  // Whatever the shape of a long answer, only a part of it is rendered at once.
  const SHAPES = [many('*a* '), many('[a](https://a/) '), (length) => `> ${many('*a* ')(length)}`, many('> *a* **b**\n'), (length) => `- a\n${many('  *a* `b`\n')(length)}`,
    (length) => `- a\n${many('  - a\n')(length)}`, many('|a|b|\n|-|-|\n'), many('- ```\n'), (length) => `[^a]: ${many('*a* ')(length)}`];
  const inSteps = () => SHAPES.map((shape) => shape(200_000))
    .filter((text) => prose(text).textContent.length > text.length / 4)
    .map((text) => `rendered at once: ${named(text)}`);
  const formulasInSteps = async () => {
    const box = document.createElement('div');
    box.append(render(many('$a$ ')(200_000)));
    const typeset = () => box.querySelectorAll('math').length;
    while (!typeset()) await new Promise((done) => { setTimeout(done); });
    return typeset() === box.querySelectorAll('.math').length ? ['all formulas were typeset at once'] : [];
  };

  globalThis.checks = [
    ...HEAVY.map((heavy) => check('Markdown', render, heavy, 100_000)),
    ...FORMS.map((heavy) => check('a formula', (tex) => formula(tex, true), heavy, 4_000)),
    ...CODE.map(([heavy, language]) => check(language, (text) => tokens(text, language), heavy, 48_000)),
    inSteps, formulasInSteps,
  ];
  return checks.length;
})()
