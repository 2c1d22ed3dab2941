/** Applies the theme and the width of the sidebar before the first paint: a plain script, because a module would be late. */

try {
  const chosen = localStorage.getItem('choice:theme');
  if (chosen) document.documentElement.dataset.theme = chosen;
  if (localStorage.getItem('choice:rail')) document.documentElement.dataset.rail = 'on';
} catch { /* nothing is kept here */ }
