// JSON without loss. Payloads and results are other people's data: they are shown as the text that was sent, so that
// 9007199254740993 stays what it is and 1.0 does not become 1.
//
//   parse(text)   like JSON.parse, but the values of payload, result, progress, headers and detail come as `Raw`
//   tree(raw)     a Raw as nodes, for showing; numbers keep their text

/** A value as the text it was sent as. */
export class Raw {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** One value of a JSON text; `text` is exactly what stood there. */
export type Node =
  | { readonly kind: "scalar"; readonly text: string; readonly type: "string" | "number" | "boolean" | "null" }
  | { readonly kind: "array"; readonly items: readonly Node[] }
  | { readonly kind: "object"; readonly items: readonly (readonly [name: string, value: Node])[] };

const RAW_NAMES = new Set(["payload", "result", "progress", "headers", "detail"]);

/** Reads a JSON text from a place on; the reader knows what to make of what it finds. */
class Reader {
  readonly text: string;
  at = 0;
  constructor(text: string) {
    this.text = text;
  }

  space(): void {
    while (/\s/.test(this.text[this.at] ?? "")) this.at++;
  }

  expect(sign: string): void {
    this.space();
    if (this.text[this.at] !== sign) throw new SyntaxError(`expected ${sign} at ${this.at} of JSON`);
    this.at++;
  }

  next(): string {
    this.space();
    return this.text[this.at] ?? "";
  }

  /** The source of a string, number or word. */
  scalar(): string {
    const from = this.at;
    if (this.next() === '"') {
      for (this.at++; this.text[this.at] !== '"'; this.at++) {
        if (this.at >= this.text.length) throw new SyntaxError("a string without an end in JSON");
        if (this.text[this.at] === "\\") this.at++;
      }
      this.at++;
    } else {
      while (/[-+.\w]/.test(this.text[this.at] ?? "")) this.at++;
      if (this.at === from) throw new SyntaxError(`nothing to read at ${from} of JSON`);
    }
    return this.text.slice(from, this.at).trim();
  }

  /** Goes through the members of an object or the items of an array. */
  each(open: string, close: string, one: () => void): void {
    this.expect(open);
    if (this.next() === close) {
      this.at++;
      return;
    }
    for (;;) {
      one();
      const sign = this.next();
      this.at++;
      if (sign === close) return;
      if (sign !== ",") throw new SyntaxError(`expected , or ${close} at ${this.at - 1} of JSON`);
    }
  }

  name(): string {
    this.space();
    const name = JSON.parse(this.scalar()) as string;
    this.expect(":");
    return name;
  }

  skip(): void {
    const sign = this.next();
    if (sign === "{") this.each("{", "}", () => (this.name(), this.skip()));
    else if (sign === "[") this.each("[", "]", () => this.skip());
    else this.scalar();
  }

  value(name?: string): unknown {
    const sign = this.next();
    if (name !== undefined && RAW_NAMES.has(name)) {
      const from = this.at;
      this.skip();
      const text = this.text.slice(from, this.at);
      return text === "null" ? null : new Raw(text);
    }
    if (sign === "{") {
      const object: Record<string, unknown> = {};
      this.each("{", "}", () => {
        const member = this.name();
        object[member] = this.value(member);
      });
      return object;
    }
    if (sign === "[") {
      const array: unknown[] = [];
      this.each("[", "]", () => array.push(this.value()));
      return array;
    }
    return JSON.parse(this.scalar());
  }

  node(): Node {
    const sign = this.next();
    if (sign === "{") {
      const items: [string, Node][] = [];
      this.each("{", "}", () => items.push([this.name(), this.node()]));
      return { kind: "object", items };
    }
    if (sign === "[") {
      const items: Node[] = [];
      this.each("[", "]", () => items.push(this.node()));
      return { kind: "array", items };
    }
    const text = this.scalar();
    const type = text[0] === '"' ? "string" : text === "null" ? "null" : /^[tf]/.test(text) ? "boolean" : "number";
    return { kind: "scalar", text, type };
  }
}

/** An answer of the API. */
export function parse(text: string): unknown {
  return new Reader(text).value();
}

/** A value as nodes. */
export function tree(raw: Raw | string): Node {
  return new Reader(typeof raw === "string" ? raw : raw.text).node();
}

/** A value on one line, cut to so many characters. */
export function preview(raw: Raw | null | undefined, most = 80): string {
  const text = raw?.text ?? "";
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** A text that came as `Raw` because of its name, as the text that it is. */
export function said(value: Raw | string | null | undefined): string {
  if (!(value instanceof Raw)) return value ?? "";
  return value.text.startsWith('"') ? (JSON.parse(value.text) as string) : value.text;
}
