/** Pictures to start a video from: dropped, pasted or chosen. Each is encoded here and stored on the server for a day. */

import { announce, button, byId, element, icon } from '../core/dom.js';
import { inWords, t } from '../core/format.js';
import { post } from '../core/site.js';

/** Larger pictures are scaled down. Models make videos of at most 1920 pixels. */
const MAX_SIDE = 2048;
const QUALITY = 0.92;

let home, complain;
/** How many pictures were taken: a newer one replaces one that is on its way. */
let taken = 0;

/** Stores a picture, and returns its public address. Throws if the browser cannot read it, or the server refuses it. */
export async function uploadPicture(blob) {
  const { url } = await post('/bff/pictures', await encoded(blob));
  return url;
}

/** Encoding it again drops everything but the pixels: where a photo was taken, and what else a file can hide. */
async function encoded(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => { throw new TypeError(t('picture.unreadable')); });
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = element('canvas', { width: Math.ceil(bitmap.width * scale), height: Math.ceil(bitmap.height * scale) });
  const context = canvas.getContext('2d');
  // JPEG has no transparency.
  context.fillStyle = 'white';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise((done) => { canvas.toBlob(done, 'image/jpeg', QUALITY); });
}

/** Lets the form take files. `address`: how the address of an uploaded picture begins; `tell(text)` says what is wrong at the field. */
export function startPictures(address, tell) {
  [home, complain] = [address, tell];
  const file = element('input', { type: 'file', accept: 'image/*', hidden: true, change: () => take(file.files) });
  byId('video-image-hint').textContent = t('picture.hint');
  byId('video-picture').prepend(button(t('picture.choose'), () => file.click(), 'quiet'), file);
  byId('video-image').addEventListener('change', show);
  for (const [kind, files] of [['drop', 'dataTransfer'], ['paste', 'clipboardData']]) {
    document.addEventListener(kind, (event) => !byId('view-video').hidden && take(event[files]?.files) && event.preventDefault());
  }
  show();
}

/** Whether this uploaded picture is no longer there, and says so: an order with it would be charged. */
export async function isGone(address) {
  if (!address?.startsWith(home)) return false;
  const answer = await fetch(pathOf(address), { method: 'HEAD' }).catch(() => null);
  if (answer?.status === 404) complain(t('picture.gone'));
  return answer?.status === 404;
}

/** The page may be open at another address than the public one. */
const pathOf = (address) => new URL(address).pathname;

/** Uploads the first of these files into the form; whether there is one. */
function take(files) {
  if (files?.length) void upload(files[0]);
  return files?.length > 0;
}

async function upload(file) {
  const field = byId('video-image');
  const own = ++taken;
  // An order meanwhile would leave the picture out.
  field.ariaBusy = 'true';
  announce(t('picture.uploading'));
  let [address, fault] = ['', ''];
  try {
    address = await uploadPicture(file);
  } catch (error) {
    fault = t('picture.notUploaded', inWords(`problem.${error.code}`, error.message));
  }
  if (own !== taken) return;
  field.ariaBusy = null;
  put(address || field.value);
  if (fault) complain(fault);
  else {
    announce(t('picture.uploaded'));
    byId('video-picture').hidePopover();
  }
}

function put(address) {
  byId('video-image').value = address;
  byId('video-image').dispatchEvent(new Event('input', { bubbles: true }));
  show();
}

function show() {
  const { value } = byId('video-image');
  const slot = byId('video-slot');
  slot.querySelector('img')?.remove();
  slot.nextElementSibling.matches('.unslot') && slot.nextElementSibling.remove();
  const isUploaded = value.startsWith(home);
  // The address of an uploaded picture says nothing to a person.
  for (const id of ['video-image', 'video-image-label']) byId(id).hidden = isUploaded;
  if (!isUploaded) return;
  const remove = () => {
    put('');
    slot.focus();
  };
  slot.append(element('img', { src: pathOf(value), alt: t('picture.shown'), error: () => complain(t('picture.gone')) }));
  slot.after(element('button', { type: 'button', class: 'unslot', 'aria-label': t('picture.remove'), title: t('picture.remove'), click: remove }, icon('close')));
}
