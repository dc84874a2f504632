// A screen that is not written yet: it says what to use meanwhile.
import type { JSX } from "preact";
import { EmptyState, Page } from "../ui/parts.tsx";

export const soon = (title: string, command: string) =>
  function Soon(): JSX.Element {
    return <Page title={title}><EmptyState title="This screen is being built" command={command}>Until then, the command line shows it.</EmptyState></Page>;
  };
