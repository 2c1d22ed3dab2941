/** Turns a subset of TeX into MathML nodes. Loaded with the first formula of an answer. */

const MATHML = 'http://www.w3.org/1998/Math/MathML';
/** Formulas with deeper groups or arguments are shown as source. */
const MAX_DEPTH = 20;
/** So are matrices with more columns, which are slow to lay out. */
const MAX_COLUMNS = 64;

const table = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split(':')));

/** Letters and names, shown as identifiers. */
const LETTERS = table(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν
  xi:ξ pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ
  Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ hbar:ℏ ell:ℓ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅
  angle:∠ triangle:△ top:⊤ bot:⊥ imath:ı jmath:ȷ degree:° checkmark:✓ dagger:† square:□ blacksquare:■ bigstar:★`);
const OPERATORS = table(`times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ cap:∩ cup:∪ setminus:∖
  wedge:∧ land:∧ vee:∨ lor:∨ neg:¬ lnot:¬ forall:∀ exists:∃ nexists:∄ in:∈ notin:∉ ni:∋ subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇
  subsetneq:⊊ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ ll:≪ gg:≫ equiv:≡ approx:≈ sim:∼ simeq:≃ cong:≅ propto:∝ prec:≺ succ:≻ mid:∣
  parallel:∥ perp:⟂ vdash:⊢ models:⊨ to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔
  implies:⟹ iff:⟺ longrightarrow:⟶ longleftarrow:⟵ mapsto:↦ hookrightarrow:↪ uparrow:↑ downarrow:↓ rightleftharpoons:⇌ ldots:… dots:…
  dotsc:… cdots:⋯ dotsb:⋯ vdots:⋮ ddots:⋱ prime:′ colon:: therefore:∴ because:∵ langle:⟨ rangle:⟩ lceil:⌈ rceil:⌉ lfloor:⌊ rfloor:⌋
  lbrace:{ rbrace:} lbrack:[ rbrack:] vert:| lvert:| rvert:| Vert:‖ lVert:‖ rVert:‖ backslash:\\ triangleq:≜ doteq:≐ asymp:≍
  int:∫ iint:∬ iiint:∭ oint:∮`);
/** Their limits stand above and below in a displayed formula. */
const BIG = table('sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀');
const FUNCTIONS = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp arg deg dim hom ker det gcd
  Pr mod`.split(/\s+/));
const LIMITS = new Set('lim limsup liminf max min sup inf argmax argmin'.split(' '));
const ACCENTS = table('hat:^ widehat:^ bar:¯ overline:¯ tilde:~ widetilde:~ vec:→ overrightarrow:→ dot:˙ ddot:¨ check:ˇ breve:˘ overbrace:⏞');
const BELOW = table('underline:_ underbrace:⏟');
const SPACES = { ',': 0.167, ':': 0.222, '>': 0.222, ';': 0.278, '!': -0.167, ' ': 0.25, quad: 1, qquad: 2, thinspace: 0.167, enspace: 0.5 };
const VARIANTS = { mathbf: 'bold', boldsymbol: 'bold', bm: 'bold', mathbb: 'double', mathcal: 'script', mathscr: 'script', mathfrak: 'fraktur' };
/** Where each style of the Unicode block for mathematics begins: capital A, small a, digit 0. */
const STYLES = { bold: [0x1d400, 0x1d41a, 0x1d7ce], double: [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e] };
/** Letters that Unicode has elsewhere. */
const HOLES = table('double-C:ℂ double-H:ℍ double-N:ℕ double-P:ℙ double-Q:ℚ double-R:ℝ double-Z:ℤ script-B:ℬ script-E:ℰ script-F:ℱ script-H:ℋ script-I:ℐ script-L:ℒ script-M:ℳ script-R:ℛ script-e:ℯ script-g:ℊ script-o:ℴ fraktur-C:ℭ fraktur-H:ℌ fraktur-I:ℑ fraktur-R:ℜ fraktur-Z:ℨ');
/** The brackets of each kind of matrix. */
const FENCES = { matrix: '', smallmatrix: '', pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{' };

class Unsupported extends Error {}

/** The formula as `<math>`, or null for TeX that this subset does not know. */
export function formula(source, isBlock) {
  const parser = { tokens: source.match(/\\(?:[a-zA-Z]+\*?|[\s\S])|[\s\S]/g) ?? [], at: 0, depth: 0, isBlock };
  try {
    const inner = row(parser, () => false);
    const made = make('math', inner);
    if (isBlock) made.setAttribute('display', 'block');
    return made;
  } catch (error) {
    if (error instanceof Unsupported) return null;
    throw error;
  }
}

function make(name, content = [], attributes = {}) {
  const made = document.createElementNS(MATHML, name);
  if (typeof content === 'string') made.textContent = content;
  else for (const node of content) made.append(node);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const one = (nodes) => (nodes.length === 1 ? nodes[0] : make('mrow', nodes));
const operator = (text, attributes) => make('mo', text, attributes);
const peek = (parser) => parser.tokens[parser.at];
const isBlank = (token) => token !== undefined && /^\s$/.test(token);

function skipBlanks(parser) {
  while (isBlank(peek(parser))) parser.at += 1;
}

/** Reads up to a token for which `ends` holds, which is left there; without one, to the end. */
function row(parser, ends) {
  return deeper(parser, () => {
    const nodes = [];
    for (skipBlanks(parser); parser.at < parser.tokens.length && !ends(peek(parser)); skipBlanks(parser)) {
      const made = scripted(parser, atom(parser));
      if (made) nodes.push(made);
    }
    return nodes;
  });
}

function deeper(parser, read) {
  parser.depth += 1;
  if (parser.depth > MAX_DEPTH) throw new Unsupported();
  const made = read(parser);
  parser.depth -= 1;
  return made;
}

/** The braces' content, or the next token alone. */
function argument(parser) {
  skipBlanks(parser);
  const token = peek(parser);
  if (token === undefined || token === '}') throw new Unsupported();
  if (token !== '{') return deeper(parser, atom) ?? make('mrow');
  return group(parser);
}

function group(parser) {
  parser.at += 1;
  const nodes = row(parser, (token) => token === '}');
  if (peek(parser) !== '}') throw new Unsupported();
  parser.at += 1;
  return one(nodes);
}

/** The text between braces, as it stands. */
function plainArgument(parser) {
  skipBlanks(parser);
  if (peek(parser) !== '{') throw new Unsupported();
  let text = '';
  let open = 0;
  for (; parser.at < parser.tokens.length; parser.at += 1) {
    const token = peek(parser);
    if (token === '{') open += 1;
    if (token === '}') open -= 1;
    if (open === 0) break;
    if (token !== '{' && token !== '}') text += token.replace(/^\\([^a-zA-Z])$/, '$1');
  }
  if (peek(parser) !== '}') throw new Unsupported();
  parser.at += 1;
  return text;
}

/** Puts subscripts, superscripts and primes on what stands before them. */
function scripted(parser, base) {
  let below = null, above = null, hasLimits = base?.limits;
  for (skipBlanks(parser); ; skipBlanks(parser)) {
    const token = peek(parser);
    if (token === '\\limits' || token === '\\nolimits') {
      hasLimits = token === '\\limits';
      parser.at += 1;
    } else if (token === '_' && !below) {
      parser.at += 1;
      below = argument(parser);
    } else if (token === '^' && !above) {
      parser.at += 1;
      above = argument(parser);
    } else if (token === "'" && !above) {
      let primes = '';
      for (; peek(parser) === "'"; parser.at += 1) primes += '′';
      above = operator(primes);
    } else if (token === '_' || token === '^' || token === "'") {
      throw new Unsupported();
    } else {
      break;
    }
  }
  if (!below && !above) return base;
  const [lower, upper, both] = hasLimits && parser.isBlock ? ['munder', 'mover', 'munderover'] : ['msub', 'msup', 'msubsup'];
  return make(below && above ? both : below ? lower : upper, [base ?? make('mrow'), below, above].filter(Boolean));
}

function atom(parser) {
  const token = peek(parser);
  if (token === '{') return group(parser);
  if (token === '^' || token === '_') return make('mrow');
  if (token === '}' || token === '&') throw new Unsupported();
  parser.at += 1;
  if (token.startsWith('\\')) return command(parser, token.slice(1));
  if (/\d/.test(token)) {
    let digits = token;
    while (/^[\d.,]$/.test(peek(parser) ?? '') && (/\d/.test(peek(parser)) || /\d/.test(parser.tokens[parser.at + 1] ?? ''))) {
      digits += peek(parser);
      parser.at += 1;
    }
    return make('mn', digits);
  }
  if (/\p{L}/u.test(token)) return make('mi', token);
  if (token === '~') return space(0.25);
  return operator({ '-': '−', '*': '∗' }[token] ?? token, '()[]|'.includes(token) ? { stretchy: 'false' } : {});
}

const space = (width) => make('mspace', [], { width: `${width}em` });

function command(parser, name) {
  if (Object.hasOwn(SPACES, name)) return space(SPACES[name]);
  if (LETTERS.has(name)) return make('mi', LETTERS.get(name));
  if (OPERATORS.has(name)) return operator(OPERATORS.get(name));
  if (BIG.has(name)) return Object.assign(operator(BIG.get(name)), { limits: true });
  if (FUNCTIONS.has(name)) return make('mi', name);
  if (LIMITS.has(name)) return Object.assign(make('mi', name), { limits: true });
  if (ACCENTS.has(name)) return make('mover', [argument(parser), operator(ACCENTS.get(name), { stretchy: /^(over|wide)/.test(name) })], { accent: 'true' });
  if (BELOW.has(name)) return Object.assign(make('munder', [argument(parser), operator(BELOW.get(name), { stretchy: 'true' })]), { limits: true });
  if (Object.hasOwn(VARIANTS, name)) return styled(argument(parser), VARIANTS[name]);
  if (/^[{}%$#&_]$/.test(name)) return operator(name, { stretchy: 'false' });
  if (name === '|') return operator('‖');
  const does = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : null;
  if (!does) throw new Unsupported();
  return does(parser, name);
}

const text = (parser) => make('mtext', plainArgument(parser).replace(/^ | $/g, '\u00a0'));
const upright = (parser) => make('mi', plainArgument(parser).trim(), { mathvariant: 'normal' });
const fraction = (parser) => make('mfrac', [argument(parser), argument(parser)]);
const nothing = () => null;

const COMMANDS = {
  frac: fraction, dfrac: fraction, tfrac: fraction, cfrac: fraction,
  binom: (parser) => make('mrow', [operator('('), make('mfrac', [argument(parser), argument(parser)], { linethickness: '0' }), operator(')')]),
  sqrt: root,
  text, textbf: text, textit: text, textrm: text, mbox: text, mathrm: upright, operatorname: upright, mathsf: upright, mathtt: upright, mathit: argument,
  left: fenced, begin: environment,
  big: sized, Big: sized, bigg: sized, Bigg: sized, bigl: sized, bigr: sized, Bigl: sized, Bigr: sized,
  overset: (parser) => reversed('mover', parser), stackrel: (parser) => reversed('mover', parser), underset: (parser) => reversed('munder', parser),
  xrightarrow: (parser) => make('mover', [operator('→', { stretchy: 'true' }), argument(parser)]),
  boxed: (parser) => make('mrow', [argument(parser)], { class: 'boxed' }),
  not: (parser) => make('mrow', [argument(parser), make('mpadded', [operator('̸')], { width: '0' })]),
  pmod: (parser) => make('mrow', [space(0.5), operator('('), make('mi', 'mod'), space(0.25), argument(parser), operator(')')]),
  bmod: () => operator('mod'),
  tag: (parser) => make('mtext', `  (${plainArgument(parser)})`),
  displaystyle: nothing, textstyle: nothing, nonumber: nothing, notag: nothing, limits: nothing,
};

function reversed(name, parser) {
  const script = argument(parser);
  return make(name, [argument(parser), script]);
}

function root(parser) {
  skipBlanks(parser);
  if (peek(parser) !== '[') return make('msqrt', [argument(parser)]);
  parser.at += 1;
  const degree = one(row(parser, (token) => token === ']'));
  parser.at += 1;
  return make('mroot', [argument(parser), degree]);
}

/** A bracket after `\left`, `\right` or `\big`; a point is none. */
function bracket(parser) {
  skipBlanks(parser);
  const token = peek(parser);
  if (token === undefined) throw new Unsupported();
  parser.at += 1;
  if (token === '.') return '';
  const name = token.slice(1);
  if (!token.startsWith('\\')) return token;
  return { '|': '‖', '{': '{', '}': '}' }[name] ?? OPERATORS.get(name) ?? token;
}

function sized(parser) {
  return operator(bracket(parser), { stretchy: 'false', minsize: '1.4em' });
}

function fenced(parser) {
  const open = bracket(parser);
  const nodes = row(parser, (token) => token === '\\right');
  if (peek(parser) !== '\\right') throw new Unsupported();
  parser.at += 1;
  const close = bracket(parser);
  return make('mrow', [operator(open, { fence: 'true' }), ...nodes, operator(close, { fence: 'true' })]);
}

/** `\begin{pmatrix} … \end{pmatrix}` and the like: rows end with `\\`, cells with `&`. */
function environment(parser) {
  const name = plainArgument(parser).replace(/\*$/, '');
  const isAligned = /^(align|aligned|gather|gathered|split|equation|eqnarray)$/.test(name);
  if (!isAligned && name !== 'array' && !Object.hasOwn(FENCES, name)) throw new Unsupported();
  if (name === 'array') plainArgument(parser);
  const rows = [[]];
  for (;;) {
    const cell = row(parser, (token) => token === '&' || token === '\\\\' || token === '\\end' || token === '\\cr');
    if (rows.at(-1).push(make('mtd', cell)) > MAX_COLUMNS) throw new Unsupported();
    const token = peek(parser);
    if (token === undefined) throw new Unsupported();
    parser.at += 1;
    if (token === '\\end') break;
    if (token !== '&') rows.push([]);
  }
  plainArgument(parser);
  const last = rows.at(-1);
  if (rows.length > 1 && last.length === 1 && !last[0].childNodes.length) rows.pop();
  const made = make('mtable', rows.map((cells) => make('mtr', cells)), { class: isAligned ? 'aligned' : name === 'cases' ? 'cases' : 'matrix' });
  if (isAligned) made.setAttribute('displaystyle', 'true');
  const [open, close] = FENCES[name] ?? '';
  if (!open) return made;
  return make('mrow', [operator(open, { fence: 'true', stretchy: 'true' }), made, close ? operator(close, { fence: 'true', stretchy: 'true' }) : null].filter(Boolean));
}

/** Bold, double-struck, script or fraktur letters, which Unicode has as characters of their own. */
function styled(node, style) {
  for (const leaf of node.children.length ? node.querySelectorAll('mi, mn') : [node]) {
    leaf.textContent = [...leaf.textContent].map((letter) => mathematical(letter, style)).join('');
  }
  return node;
}

function mathematical(letter, style) {
  const hole = HOLES.get(`${style}-${letter}`);
  if (hole) return hole;
  const [capital, small, digit] = STYLES[style];
  for (const [first, last, from] of [['A', 'Z', capital], ['a', 'z', small], ['0', '9', digit]]) {
    if (from && letter >= first && letter <= last) return String.fromCodePoint(from + letter.codePointAt(0) - first.codePointAt(0));
  }
  return letter;
}
