// Requests to the server. Every failure becomes an ApiError with a sentence for the user.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const TOKEN = "phrasechain-token";
let askForToken = async () => null;

export function onTokenNeeded(ask) {
  askForToken = ask;
}

function headersWithToken(headers = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

async function send(path, options, mayAsk = true) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headersWithToken(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is phrasechain serve still running?", 0);
  }
  if (answer.ok) return answer;
  if (answer.status === 401 && mayAsk) {
    const token = await askForToken();
    if (token) {
      sessionStorage.setItem(TOKEN, token);
      return send(path, options, true);
    }
  }
  const body = await answer.json().catch(() => ({}));
  const message = body.error ?? `The server answered ${answer.status}.`;
  throw new ApiError(message.charAt(0).toUpperCase() + message.slice(1), answer.status);
}

export async function get(path) {
  return (await send(path, {})).json();
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

// A form with the photo itself; the answer as a blob.
export async function postPhoto(path, blob, fields = {}) {
  const form = new FormData();
  form.append("image", blob, "photo");
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return (await send(path, { method: "POST", body: form })).blob();
}

export async function upload(blob) {
  return JSON.parse(await (await postPhoto("/api/photos", blob)).text());
}
