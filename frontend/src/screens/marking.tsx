// Marking a moment on the charts: a deploy, say.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api } from "../lib/http.ts";
import { act } from "../lib/query.ts";
import { Button, Dialog, Field } from "../ui/parts.tsx";

export function Mark(): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const [text, setText] = useState("");
  const send = async (): Promise<void> => {
    if (text.trim() === "") return;
    const made = await act(() => api.post("/v1/markers", { text: text.trim() }), "Marked", ["/v1/markers", "/v1/audit"]);
    if (made) (setOpen(false), setText(""));
  };
  return (
    <>
      <Button icon="plus" needs="operate" title="A line on the charts: a deploy, say" onClick={() => setOpen(true)}>Mark now</Button>
      {isOpen && (
        <Dialog title="Mark this moment" onClose={() => setOpen(false)} footer={<><Button onClick={() => setOpen(false)}>Leave it</Button><Button kind="primary" isDisabled={text.trim() === ""} onClick={send}>Mark</Button></>}>
          <form class="stack" onSubmit={(event) => (event.preventDefault(), void send())}>
            <Field label="What happened" hint={<>A line on every chart. Programs do it with <code>POST /v1/markers</code>.</>}>{(id) => <input id={id} class="input" autoFocus maxLength={200} placeholder="deployed 4f2a91c" value={text} onInput={(event) => setText(event.currentTarget.value)} />}</Field>
          </form>
        </Dialog>
      )}
    </>
  );
}
