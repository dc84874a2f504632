// Where the page begins.
import "./style.css";
import "./screens/watching.css";
import { render } from "preact";
import { beginLive } from "./lib/live.ts";
import { beginSession } from "./lib/session.ts";
import { Shell } from "./shell.tsx";

const place = document.getElementById("app");
if (place) render(<Shell />, place);
beginLive();
void beginSession();
