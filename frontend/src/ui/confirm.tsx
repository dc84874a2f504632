// Asks before something is done that cannot be undone, or is done to many.
//
//   const answer = await confirm({
//     title: "Cancel jobs", action: "Cancel 12,431 jobs", isDanger: true,
//     what: <Predicate filter={filter} count={12431} isExact/>,       // the predicate in words, and how many
//     typed: "12431",                                                 // must be typed first; leave out for lesser things
//     asksReason: true,
//   });
//   if (answer === null) return;                                      // they thought better of it
//   answer.reason                                                     // "" if none was given
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { FilterBody } from "../api.ts";
import { zone } from "../lib/prefs.ts";
import { absolute, count as counted, inWords } from "../lib/words.ts";
import { Button, Dialog, Field } from "./parts.tsx";

export type Question = {
  readonly title: string;
  readonly what: ComponentChildren;
  readonly action: string;
  readonly isDanger?: boolean;
  readonly typed?: string;
  readonly asksReason?: boolean;
};
export type Confirmed = { readonly reason: string };

type Asked = Question & { readonly answer: (answer: Confirmed | null) => void };
const asked = signal<Asked | null>(null);

export function confirm(question: Question): Promise<Confirmed | null> {
  return new Promise((resolve) => {
    asked.value = { ...question, answer: (answer) => ((asked.value = null), resolve(answer)) };
  });
}

/** Which jobs, in words, and how many. */
export function Predicate({ filter, count, isExact }: { filter: FilterBody; count: number; isExact: boolean }): JSX.Element {
  return (
    <div class="predicate">
      <span class="predicate-count num">{counted(count, isExact)}</span>
      <span>{count === 1 ? "job" : "jobs"} {inWords(filter, (iso) => absolute(Date.parse(iso), zone.value))}</span>
    </div>
  );
}

/** Where questions are asked; the shell has one. */
export function Questions(): JSX.Element | null {
  return asked.value && <Ask key={asked.value.title} question={asked.value} />;
}

function Ask({ question }: { question: Asked }): JSX.Element {
  const [typed, setTyped] = useState("");
  const [reason, setReason] = useState("");
  const isReady = question.typed === undefined || typed.trim() === question.typed;
  const give = (): void => question.answer({ reason: reason.trim() });
  return (
    <Dialog title={question.title} onClose={() => question.answer(null)} footer={<>
      <Button onClick={() => question.answer(null)}>Leave it</Button>
      <Button kind={question.isDanger ? "danger" : "primary"} isDisabled={!isReady} onClick={give}>{question.action}</Button>
    </>}>
      <form class="stack" onSubmit={(event) => (event.preventDefault(), isReady && give())}>
        {question.what}
        {question.asksReason && <Field label="Reason" hint="Goes into the audit log.">{(id) => <input id={id} class="input" value={reason} maxLength={500} autoFocus onInput={(event) => setReason(event.currentTarget.value)} placeholder="optional" />}</Field>}
        {question.typed !== undefined && <Field label={`Type ${question.typed} to go on`}>{(id) => <input id={id} class="input" value={typed} autoComplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />}</Field>}
        <input type="submit" hidden />
      </form>
    </Dialog>
  );
}
