/** The sheet of instructions: a preset of the operator, or a text of one's own, sent as the system message of the conversation. */

import { element } from '../core/dom.js';
import { TEXT } from './chat.js';

let sheet = null, field, choices, presets, done;

/** Opens the sheet; `take(text)` gets the instructions, '' for none. */
export function editInstructions(catalog, current, take) {
  [presets, done] = [catalog.presets ?? [], take];
  sheet ??= build();
  field.value = current;
  mark();
  sheet.showModal();
  field.focus();
}

function build() {
  choices = element('div', { class: 'choices', role: 'group', 'aria-label': TEXT.preset.presets },
    [{ name: TEXT.preset.nothing, system: '' }, ...presets].map(({ name, system }) => element('button', {
      type: 'button', class: 'quiet small', text: name, 'data-system': system, click: () => {
        field.value = system;
        mark();
      },
    })));
  field = element('textarea', { id: 'instructions', rows: 5, dir: 'auto', placeholder: TEXT.preset.placeholder, maxlength: 20000, input: mark });
  const close = () => made.close();
  const save = (event) => {
    event.preventDefault();
    close();
    done(field.value.trim());
  };
  const made = element('dialog', { class: 'model-sheet preset-sheet', 'aria-labelledby': 'instructions-heading' },
    element('form', { submit: save },
      element('h2', { id: 'instructions-heading', text: TEXT.preset.title }),
      element('p', { class: 'hint', text: TEXT.preset.hint }),
      choices,
      element('label', { for: 'instructions', class: 'unseen', text: TEXT.preset.title }), field,
      element('div', { class: 'actions' }, element('button', { type: 'button', class: 'quiet', text: TEXT.preset.cancel, click: close }),
        element('button', { type: 'submit', class: 'primary', text: TEXT.preset.save }))));
  made.addEventListener('click', ({ target }) => target === made && close());
  document.body.append(made);
  return made;
}

function mark() {
  for (const one of choices.children) one.ariaPressed = one.dataset.system === field.value.trim() ? 'true' : 'false';
}
