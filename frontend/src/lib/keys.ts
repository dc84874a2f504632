// Keys. A screen says what its keys do, and the help dialog knows them all.
//
//   useKeys([["r", "Redrive what is selected", redrive]]);
//   useKeys([["g j", "Go to jobs", …]]);          // two keys, one after the other
//
// The last screen or dialog to register a key has it. Nothing happens while somebody types, save for Mod+… keys.
import { useLayoutEffect } from "preact/hooks";

/** Keys as people read them (`g j`, `/`, `Mod+k`), what they do, and how. */
export type Key = readonly [keys: string, about: string, run: () => void];

let layers: readonly (readonly Key[])[] = [];
let first: string | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;

export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Every key that does something now, the most particular last. */
export const allKeys = (): readonly Key[] => [...new Map(layers.flat().map((key) => [key[0], key])).values()];

/** `isUnder`: keys of the frame, which any screen may take for itself. */
export function useKeys(keys: readonly Key[], isUnder = false): void {
  useLayoutEffect(() => { // with what is seen, not after: a key pressed at once must not be lost
    layers = isUnder ? [keys, ...layers] : [...layers, keys];
    return () => {
      layers = layers.filter((one) => one !== keys);
    };
  });
}

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && !(target instanceof HTMLInputElement && target.type === "checkbox");

function find(keys: string): Key | undefined {
  for (const layer of [...layers].reverse()) {
    const found = layer.find((key) => key[0] === keys);
    if (found) return found;
  }
  return undefined;
}

document.addEventListener("keydown", (event) => {
  const isMod = event.metaKey || event.ctrlKey;
  if (event.altKey || event.isComposing || (!isMod && isTyping(event.target))) return;
  if (!isMod && document.querySelector("dialog[open]") !== null) return; // a dialog's keys are its own
  const pressed = isMod ? `Mod+${event.key.toLowerCase()}` : event.key;
  const both = first === null ? undefined : find(`${first} ${pressed}`);
  const key = both ?? find(pressed);
  clearTimeout(timer);
  first = null;
  if (key !== undefined) {
    event.preventDefault();
    key[2]();
  } else if (!isMod && layers.some((layer) => layer.some(([keys]) => keys.startsWith(`${pressed} `)))) {
    first = pressed;
    timer = setTimeout(() => (first = null), 1200);
  }
});
