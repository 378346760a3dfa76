//! A scripted registry: one HTTP answer per connection, however invalid.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use warren_image::Digest;
use warren_testkit::image::{Compression, ImageLayer, PackedImage, TestImage};

use crate::world::random_bytes;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct ScriptedRequest {
    /// Path and query.
    pub path: String,
    /// Whether it is a HEAD request.
    pub is_head: bool,
    /// First requested byte of a range request.
    pub from: Option<usize>,
    pub authorization: Option<String>,
    /// Number of earlier requests for the same path.
    pub before: usize,
}

/// What happens after the sent part of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterBody {
    /// The connection closes.
    Close,
    /// Nothing; the connection stays open.
    Stall,
    /// The body is repeated endlessly.
    Repeat,
}

/// One answer.
#[derive(Clone, Debug)]
pub struct ScriptedReply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Limit of sent body bytes, `None` for all.
    pub sent: Option<usize>,
    /// Whether the body length is sent. Otherwise the end of the connection marks it.
    pub has_length: bool,
    pub after_body: AfterBody,
    /// With [`AfterBody::Stall`], the connection closes when this is true.
    pub closes: Option<watch::Receiver<bool>>,
}

impl ScriptedReply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let (headers, body) = (Vec::new(), body.into());
        Self {
            status,
            headers,
            body,
            sent: None,
            has_length: true,
            after_body: AfterBody::Close,
            closes: None,
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends only this many bytes of the body.
    pub fn cut(mut self, sent: usize) -> Self {
        self.sent = Some(sent.min(self.body.len()));
        self
    }

    pub fn after_body(mut self, then: AfterBody) -> Self {
        self.after_body = then;
        self
    }

    /// After the sent part of the body, the connection stays open until `closes` is true.
    pub fn closed_when(mut self, closes: &watch::Receiver<bool>) -> Self {
        (self.after_body, self.closes) = (AfterBody::Stall, Some(closes.clone()));
        self
    }

    pub fn without_length(mut self) -> Self {
        self.has_length = false;
        self
    }
}

/// A scripted server on loopback. Dropping it ends it.
pub struct ScriptedServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ScriptedRequest>>>,
    task: JoinHandle<()>,
}

impl ScriptedServer {
    pub async fn start(answer: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self::start_with(None, answer).await
    }

    /// As [`Scripted::start`], behind TLS.
    pub async fn start_tls(
        acceptor: TlsAcceptor,
        answer: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some(acceptor), answer).await
    }

    async fn start_with(
        acceptor: Option<TlsAcceptor>,
        answer: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<ScriptedRequest>>> = Arc::default();
        let (log, answer) = (seen.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer, acceptor) = (log.clone(), answer.clone(), acceptor.clone());
                connections.spawn(async move {
                    // A client may disconnect at any time.
                    let _ = match acceptor {
                        None => serve(stream, &log, &*answer).await,
                        Some(acceptor) => serve_tls(acceptor, stream, &log, &*answer).await,
                    };
                });
            }
        });
        Self { address, requests: seen, task }
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far whose path contains `part`.
    pub fn requests(&self, part: &str) -> Vec<ScriptedRequest> {
        let seen = self.requests.lock().unwrap();
        seen.iter().filter(|request| request.path.contains(part)).cloned().collect()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve_tls(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    log: &Mutex<Vec<ScriptedRequest>>,
    answer: &(dyn Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync),
) -> std::io::Result<()> {
    serve(acceptor.accept(stream).await?, log, answer).await
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    log: &Mutex<Vec<ScriptedRequest>>,
    answer: &(dyn Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync),
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    // What HTTP servers answer to a TLS handshake.
    if stream.fill_buf().await?.first() == Some(&0x16) {
        return send(&mut stream, false, ScriptedReply::new(400, "this is HTTP")).await;
    }
    let mut request = ScriptedRequest::default();
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        for (method, is_head) in [("GET ", false), ("HEAD ", true)] {
            if let Some(rest) = text.strip_prefix(method) {
                request.path = rest.split(' ').next().unwrap_or_default().to_owned();
                request.is_head = is_head;
            }
        }
        let Some((name, value)) = text.split_once(": ") else { continue };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.from = value.trim_start_matches("bytes=").trim_end_matches('-').parse().ok(),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    {
        let mut log = log.lock().unwrap();
        request.before = log.iter().filter(|earlier| earlier.path == request.path).count();
        log.push(request.clone());
    }
    send(&mut stream, request.is_head, answer(&request)).await
}

async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    is_head: bool,
    reply: ScriptedReply,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Scripted\r\nConnection: close\r\n", reply.status);
    if reply.has_length && reply.after_body != AfterBody::Repeat {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes()).await?;
    if is_head {
        return stream.shutdown().await;
    }
    stream.write_all(&reply.body[..reply.sent.unwrap_or(reply.body.len())]).await?;
    stream.flush().await?;
    match reply.after_body {
        AfterBody::Close => stream.shutdown().await,
        AfterBody::Stall => match reply.closes {
            None => std::future::pending().await,
            Some(mut closes) => {
                let _ = closes.wait_for(|closes| *closes).await;
                stream.shutdown().await
            }
        },
        AfterBody::Repeat => loop {
            stream.write_all(&reply.body).await?;
        },
    }
}

/// A server that accepts connections and never responds.
pub async fn silent_server() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    (host, task)
}

/// The parts of an image, to be served unchanged or damaged.
#[derive(Clone, Debug)]
pub struct SampleImage {
    pub manifest: Value,
    pub blobs: BTreeMap<String, Vec<u8>>,
}

impl SampleImage {
    /// An image with one layer of incompressible bytes for each length.
    pub fn new(seed: u64, layers: &[usize]) -> Self {
        let mut image =
            TestImage::new("warren.local/sample:1").compression(Compression::None).arguments(["/x"]);
        for (position, length) in layers.iter().enumerate() {
            let bytes = random_bytes(seed * 1000 + position as u64, *length);
            image = image.layer(ImageLayer::new().file(&format!("/data{position}"), bytes, 0o644));
        }
        Self::of(&image.oci_archive())
    }

    pub fn of(archive: &PackedImage) -> Self {
        let mut blobs = BTreeMap::new();
        for entry in tar::Archive::new(&archive.bytes[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            blobs.insert(Digest::of(&bytes).to_string(), bytes);
        }
        let manifest = serde_json::from_slice(&blobs[archive.manifest_digest.as_ref().unwrap()]).unwrap();
        Self { manifest, blobs }
    }

    /// Adds a blob and returns its digest.
    pub fn add(&mut self, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes).to_string();
        self.blobs.insert(digest.clone(), bytes.to_vec());
        digest
    }

    /// Replaces the configuration with the result of `change`.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Value)) {
        let old = self.manifest["config"]["digest"].as_str().unwrap();
        let mut config: Value = serde_json::from_slice(&self.blobs[old]).unwrap();
        change(&mut config);
        let bytes = config.to_string().into_bytes();
        self.manifest["config"]["size"] = bytes.len().into();
        self.manifest["config"]["digest"] = self.add(&bytes).into();
    }

    /// Digest and bytes of a layer.
    pub fn layer(&self, position: usize) -> (String, Vec<u8>) {
        let digest = self.manifest["layers"][position]["digest"].as_str().unwrap().to_owned();
        let bytes = self.blobs[&digest].clone();
        (digest, bytes)
    }

    /// The answer of a correct registry that serves only this image, under every name.
    pub fn answer(&self, request: &ScriptedRequest) -> ScriptedReply {
        let Some((_, name)) = request.path.rsplit_once('/') else { return ScriptedReply::new(404, "") };
        if request.path.contains("/manifests/") {
            let bytes = match self.blobs.get(name) {
                Some(bytes) => bytes.clone(),
                None => self.manifest.to_string().into_bytes(),
            };
            let parsed: Value = serde_json::from_slice(&bytes).unwrap();
            let media_type = parsed["mediaType"].as_str().unwrap_or("application/json");
            let digest = Digest::of(&bytes);
            return ScriptedReply::new(200, bytes)
                .header("Content-Type", media_type)
                .header("Docker-Content-Digest", digest.as_str());
        }
        match (self.blobs.get(name), request.from) {
            (None, _) => ScriptedReply::new(404, r#"{"errors":[{"code":"BLOB_UNKNOWN"}]}"#),
            (Some(bytes), None) => ScriptedReply::new(200, bytes.clone()),
            (Some(bytes), Some(from)) if from >= bytes.len() => ScriptedReply::new(416, ""),
            (Some(bytes), Some(from)) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                ScriptedReply::new(206, &bytes[from..]).header("Content-Range", &range)
            }
        }
    }
}

/// Longer than the stall timeout of impatient pulls, and shorter than that of others.
pub const LONGER_THAN_TIMEOUT: Duration = Duration::from_secs(45);
