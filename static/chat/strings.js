/** What the messages and the list of conversations say. */

import { TEXT as COMPOSER } from './chat.js';

export const TEXT = {
  waitFirst: COMPOSER.waitFirst,
  editing: (after) => `You are editing an earlier message. Sending it starts a new version${
    after ? ' without what came after it' : ''}. The old version stays.`,
  noneYet: COMPOSER.noneYet,

  // Messages
  you: 'You',
  youEdited: 'You, being edited',
  edit: 'Edit',
  copy: 'Copy',
  copied: 'Copied',
  again: (cost) => `Ask again · ${cost}`,
  showAll: 'Show all',
  showLess: 'Show less',
  answering: (model) => `${model} is answering`,
  elsewhere: 'Another tab is waiting for this answer. It will appear here, too.',
  stopped: 'You stopped waiting. It may still be charged. If the answer comes, it appears here.',
  versions: 'Versions',
  previousVersion: 'Previous version',
  nextVersion: 'Next version',
  versionOf: (place, count) => `Version ${place} of ${count}`,
  waited: (seconds, usual) => `${seconds} s${usual ? `, usually ${usual} s` : ''}`,
  tookAt: (time, seconds) => `${time}, answered in ${seconds} s`,
  otherModel: 'With another model',
  readAloud: 'Read aloud',
  retrying: { checking: (seconds) => `Checking, ${seconds} s`, busy: (seconds) => `Busy, trying again in ${seconds} s`, lost: (seconds) => `Connection lost, trying again in ${seconds} s` },

  // Announced to screen readers
  sent: (model) => `Sent to ${model}. Waiting for the answer.`,
  sentAgain: (model) => `Sent again to ${model}.`,
  checking: 'Checking for the answer. This is free.',
  received: (cost) => `Answer received, ${cost}`,
  receivedElsewhere: (title) => `An answer came in another conversation: ${title}`,
  stoppedWaiting: 'Stopped waiting. It may still be charged. If the answer comes, it appears here.',
  versionShown: (place, count) => `Version ${place} of ${count} is shown.`,

  // Conversations
  fresh: 'New conversation',
  untitled: 'Untitled',
  older: (count) => `${count} older conversations are not listed. Search finds them.`,
  today: 'Today',
  yesterday: 'Yesterday',
  week: 'Last seven days',
  pinned: 'Pinned',
  pin: 'Pin',
  pinOf: (name) => `Pin ${name}`,
  pinnedNow: (name) => `${name} is pinned.`,
  unpinned: (name) => `${name} is no longer pinned.`,
  rename: 'Rename',
  renameOf: (name) => `Rename ${name}`,
  newName: (name) => `New name of ${name}`,
  renamed: (name) => `Renamed to ${name}`,
  save: 'Save',
  delete: 'Delete',
  deleteOf: (name) => `Delete ${name}`,
  deleted: (name, waits) => `Deleted “${name}”.${waits ? ' It was still waiting for an answer.' : ''}`,
  undo: 'Undo',
  restored: (name) => `${name} is back.`,

  // Files in messages
  notText: (name) => `“${name}” is not a text file.`,
  fileTooLarge: (name) => `“${name}” is too large for one message.`,

  // Export and import
  fileNames: { all: 'conversations', one: 'conversation' },
  exported: {
    untitled: 'Conversation', question: (time) => `You, ${time}`, answer: (model, cost) => `${model}, ${cost}`,
    noAnswer: '*No answer was received.*', copyOf: (title) => `${title} (imported)`,
  },
  notShared: 'This browser could not share it. Export it instead.',
  notImported: (file, why) => `“${file}” was not imported: ${why} Nothing was changed.`,
  imported: (file, parts) => `Imported “${file}”: ${parts}.`,
  importedParts: (added, there, copied) => [
    `${added} added`, there && `${there} already here`, copied && `${copied} added as copies, because they differ from what is here`,
  ],
  tooLarge: 'it is too large.',
  notJson: 'it is not JSON.',
  notOurs: 'it is not an export of this page.',
  otherVersion: (theirs, ours) => `it has version ${theirs}, and this page reads version ${ours}.`,
  expected: (where, wanted) => `expected ${where} to be ${wanted}.`,
  noRoom: 'This browser has no room for all of it. The conversations imported so far last until this tab is closed.',
};
