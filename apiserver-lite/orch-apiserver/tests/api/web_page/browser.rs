//! A real browser without a window, driven through its debugging protocol.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// How long the browser may take for anything, on a busy machine.
const DONE_WITHIN: Duration = Duration::from_secs(120);

/// A browser with one page. It ends when this is dropped.
pub struct Browser {
    _process: Child,
    _profile: tempfile::TempDir,
    socket: WebSocketStream<TcpStream>,
    session: Option<String>,
    calls: u64,
    /// Errors of the page's script and of its console.
    complaints: Vec<String>,
}

/// The browser of this machine.
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let all = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    all.into_iter().find(|program| program.is_file())
}

impl Browser {
    /// Starts it with a window of this size. It trusts any certificate: that of the server is its own.
    pub async fn start(program: PathBuf, width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().expect("a directory");
        let process = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-extensions"])
            .args(["--ignore-certificate-errors", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the browser starts");
        let (port, path) = endpoint(&profile).await;
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        let url = format!("ws://127.0.0.1:{port}{path}");
        let (socket, _) = tokio_tungstenite::client_async(url, stream).await.expect("a socket");
        let mut browser = Self {
            _process: process,
            _profile: profile,
            socket,
            session: None,
            calls: 0,
            complaints: Vec::new(),
        };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(domain, json!({})).await;
        }
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", size).await;
        browser
    }

    /// Calls a method of the protocol.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(call.to_string())).await.expect("sent");
        let answered = async {
            loop {
                let message =
                    self.socket.next().await.expect("the browser runs").expect("a message");
                let Ok(text) = message.to_text() else { continue };
                let Ok(message) = serde_json::from_str::<Value>(text) else { continue };
                if message["id"] == self.calls {
                    return message;
                }
                self.complaints.extend(complaint(&message));
            }
        };
        let answer = tokio::time::timeout(DONE_WITHIN, answered).await.expect("an answer");
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Goes to a page.
    pub async fn go(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url})).await;
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.wait_for("document.readyState === 'complete'").await;
    }

    /// The value of an expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub async fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression).await != true {
            if begun.elapsed() > DONE_WITHIN {
                let text = self.value("document.body.innerText").await;
                panic!("{expression} does not come true; the page shows:\n{text}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the page complained of.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// A picture of the window: PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("Base64")
    }
}

/// Where the browser listens: it writes port and path once it does.
async fn endpoint(profile: &tempfile::TempDir) -> (u16, String) {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(profile.path().join("DevToolsActivePort"));
        let text = text.unwrap_or_default();
        let mut lines = text.lines();
        if let (Some(port), Some(path)) = (lines.next(), lines.next())
            && let Ok(port) = port.parse()
        {
            return (port, path.to_owned());
        }
        assert!(begun.elapsed() < DONE_WITHIN, "the browser does not listen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An event that tells of an error. A refused request is none: the page asks without credentials at first.
fn complaint(event: &Value) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" if params["type"] == "error" => Some(params.to_string()),
        "Log.entryAdded" if params["entry"]["level"] == "error" => {
            let text = params["entry"]["text"].as_str().unwrap_or_default();
            let is_refusal = params["entry"]["source"] == "network"
                && ["status of 401", "status of 403"].iter().any(|code| text.contains(code));
            (!is_refusal).then(|| params["entry"].to_string())
        }
        _ => None,
    }
}
