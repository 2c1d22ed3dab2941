/**
 * Chooses the language, and begins to load its texts, for which all modules wait. Applies the theme before the first paint, and the width
 * of the sidebar, which it also follows from then on. A plain script, because a module would be late. The sidebar can be narrowed to its
 * icons. Where there is little room it is narrow, and lies over the view while it is wide.
 */
{
  const { dataset } = document.documentElement;
  const small = matchMedia('(max-width: 68.74rem)');
  const kept = (name) => {
    try { return localStorage.getItem(`choice:${name}`); } catch { return null; }
  };
  const LANGUAGES = ['en', 'de'];
  const language = [kept('language'), ...navigator.languages].map((tag) => tag?.split('-')[0]).find((one) => LANGUAGES.includes(one)) ?? 'en';
  document.documentElement.lang = language;
  // Nothing is shown until shell.js has written the texts of the markup. If a script fails, the page shows what there is.
  dataset.texts = 'awaited';
  for (const fault of ['error', 'unhandledrejection']) addEventListener(fault, () => delete dataset.texts, { capture: true });
  void import(`./text/${language}.js`);
  const narrow = (is) => {
    if (is) dataset.rail = 'on';
    else delete dataset.rail;
    document.getElementById('rail')?.setAttribute('aria-pressed', String(is));
  };
  const fit = () => narrow(small.matches || Boolean(kept('rail')));
  if (kept('theme')) dataset.theme = kept('theme');
  small.addEventListener('change', fit);
  addEventListener('DOMContentLoaded', fit);
  const isOutside = (target) => target instanceof Element && !target.closest('.side, .panel, dialog');
  addEventListener('click', ({ target }) => {
    if (target.closest('#rail')) {
      narrow(!dataset.rail);
      if (small.matches) return;
      try { localStorage.setItem('choice:rail', dataset.rail ?? ''); } catch { /* It lasts until the next load. */ }
    } else if (small.matches && (isOutside(target) || target.closest('#views a, #new-conversation, .conversations li > .link:first-child'))) {
      // What was chosen in the wide sidebar is shown, and so is what lies under it.
      narrow(true);
    }
  });
  // The focus never goes to what the wide sidebar covers.
  addEventListener('focusin', ({ target }) => small.matches && isOutside(target) && narrow(true));
  fit();
}
