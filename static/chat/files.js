/** Puts text files into a message, as fenced code with their names. */

import { TEXT } from './chat.js';

/** The file as a part of a message: `{text}`, or `{trouble}` if it is no text or too large. */
export async function inlined(file, mostBytes) {
  if (file.size > mostBytes) return { trouble: TEXT.fileTooLarge(file.name) };
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return { trouble: TEXT.notText(file.name) };
  }
  if (text.includes('\0')) return { trouble: TEXT.notText(file.name) };
  // The fence is longer than any in the file.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, { length }) => Math.max(most, length), 2);
  const fence = '`'.repeat(longest + 1);
  const language = /\.([a-z0-9]{1,10})$/i.exec(file.name)?.[1] ?? '';
  return { text: `${file.name}:\n${fence}${language}\n${text.replace(/\r\n?/g, '\n').replace(/\n$/, '')}\n${fence}\n` };
}
