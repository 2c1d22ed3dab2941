/** Puts the chosen colours on before the first paint: a plain script, since a module would be late. */

try {
  const chosen = localStorage.getItem('choice:theme');
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* nothing is kept here */ }
