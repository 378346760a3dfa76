//! A registry that demands a token for each repository, and its token service. It serves what a [`TestRegistry`]
//! stores, and records what it is asked, so that tests see who proved what to whom.
//!
//! Source: Docker's "Token Authentication Specification".

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::registry::TestRegistry;

/// User and password of [`TestRegistry::start_private`] as HTTP sends them.
pub const BASIC: &str = "Basic YW5uYTpvcGVuIHNlc2FtZQ==";
const LIFETIME: Duration = Duration::from_secs(300);
const TIMEOUT: Duration = Duration::from_secs(60);

/// The registry, over plain HTTP; dropping it ends it.
#[derive(Debug)]
pub struct TokenRegistry {
    listener: TcpListener,
    server: Option<JoinHandle<()>>,
    state: Arc<RegistryState>,
}

/// A request that it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// Such as `HEAD`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The header, if there is one.
    pub authorization: Option<String>,
}

#[derive(Debug)]
struct RegistryState {
    host: String,
    /// Where the images are.
    storage: Option<PathBuf>,
    requests: Mutex<Vec<TokenRequest>>,
    /// The repository of each token, and until when it is valid.
    tokens: Mutex<BTreeMap<String, (String, Instant)>>,
}

struct Reply {
    status: &'static str,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Reply {
    fn new(status: &'static str, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, headers: Vec::new(), body: body.into() }
    }
}

impl TokenRegistry {
    /// Starts one at `address`, of the network namespace if one is given, with the images that `images` stores.
    #[must_use]
    #[track_caller]
    pub fn start(
        address: SocketAddr,
        namespace: Option<&Path>,
        images: Option<&TestRegistry>,
    ) -> TokenRegistry {
        let listener = match bind(address, namespace) {
            Ok(listener) => listener,
            Err(error) => panic!("cannot listen on {address}: {error}"),
        };
        let host = listener.local_addr().expect("a listener has an address").to_string();
        let state = Arc::new(RegistryState {
            host,
            storage: images.map(TestRegistry::root),
            requests: Mutex::default(),
            tokens: Mutex::default(),
        });
        let (accepting, shared) =
            (listener.try_clone().expect("a listener can be shared"), Arc::clone(&state));
        let server = std::thread::spawn(move || {
            // It is shut down when the registry is dropped.
            while let Ok((stream, _)) = accepting.accept() {
                let shared = Arc::clone(&shared);
                // A client may disconnect at any time.
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        TokenRegistry { listener, server: Some(server), state }
    }

    /// Its name in image references: `HOST:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.state.host.clone()
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<TokenRequest> {
        self.state.requests.lock().expect("no holder panics").clone()
    }

    /// Whether the token is good for pulls from the repository.
    #[must_use]
    pub fn accepts(&self, repository: &str, token: &str) -> bool {
        self.state.accepts(repository, token)
    }

    /// Ends the validity of all tokens.
    pub fn expire_tokens(&self) {
        for (_, until) in self.state.tokens.lock().expect("no holder panics").values_mut() {
            *until = Instant::now();
        }
    }
}

impl Drop for TokenRegistry {
    fn drop(&mut self) {
        // Its clone is no longer accepted from.
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn bind(address: SocketAddr, namespace: Option<&Path>) -> io::Result<TcpListener> {
    let namespace = namespace.map(File::open).transpose()?;
    // Another thread, since this one stays in its namespace.
    let bind = move || {
        if let Some(namespace) = namespace {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
        }
        TcpListener::bind(address)
    };
    std::thread::spawn(bind).join().expect("a listener is bound without a panic")
}

impl RegistryState {
    fn accepts(&self, repository: &str, token: &str) -> bool {
        let tokens = self.tokens.lock().expect("no holder panics");
        tokens.get(token).is_some_and(|(of, until)| of == repository && Instant::now() < *until)
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let mut words = first.split(' ').map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(()) };
        let mut authorization = None;
        for line in lines {
            let line = line?;
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    authorization = Some(value.to_owned());
                }
                Some(_) => {}
                None => break,
            }
        }
        let request = TokenRequest { method, target, authorization };
        self.requests.lock().expect("no holder panics").push(request.clone());
        let Reply { status, headers, body } = self.answer(&request);
        let mut head =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            head += &format!("{header}\r\n");
        }
        let mut stream = stream;
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if request.method != "HEAD" {
            stream.write_all(&body)?;
        }
        stream.shutdown(Shutdown::Write)
    }

    fn answer(&self, request: &TokenRequest) -> Reply {
        let TokenRequest { target, authorization, .. } = request;
        if let Some(query) = target.strip_prefix("/token?") {
            return self.issue(query, authorization.as_deref());
        }
        let path = target.strip_prefix("/v2/").unwrap_or_default();
        let (manifest, blob) = (path.rsplit_once("/manifests/"), path.rsplit_once("/blobs/"));
        let Some((repository, name)) = manifest.or(blob) else { return Reply::new("404 Not Found", "") };
        let token = authorization.as_deref().and_then(|header| header.strip_prefix("Bearer "));
        if !token.is_some_and(|token| self.accepts(repository, token)) {
            let demand =
                format!("WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"test\"", self.host);
            return Reply { headers: vec![demand], ..Reply::new("401 Unauthorized", "") };
        }
        let found = match manifest.is_some() {
            true => self.manifest(repository, name),
            false => self.blob(name),
        };
        found.unwrap_or_else(|| Reply::new("404 Not Found", ""))
    }

    /// The answer of the token service.
    fn issue(&self, query: &str, authorization: Option<&str>) -> Reply {
        let query = query.replace("%3A", ":").replace("%2F", "/");
        let scope = query.split('&').find_map(|field| field.strip_prefix("scope="));
        let repository = scope.and_then(|scope| scope.strip_prefix("repository:")?.strip_suffix(":pull"));
        let Some(repository) = repository else { return Reply::new("400 Bad Request", "unknown scope") };
        if authorization != Some(BASIC) {
            return Reply::new("401 Unauthorized", r#"{"errors":[{"message":"wrong password"}]}"#);
        }
        let mut tokens = self.tokens.lock().expect("no holder panics");
        let token = format!("token-{}", tokens.len() + 1);
        tokens.insert(token.clone(), (repository.to_owned(), Instant::now() + LIFETIME));
        Reply::new("200 OK", json!({ "token": token, "expires_in": LIFETIME.as_secs() }).to_string())
    }

    fn manifest(&self, repository: &str, name: &str) -> Option<Reply> {
        let tags = self.storage.as_ref()?.join(format!("repositories/{repository}/_manifests/tags"));
        let digest = match name.starts_with("sha256:") {
            true => name.to_owned(),
            false => std::fs::read_to_string(tags.join(name).join("current/link")).ok()?,
        };
        let mut reply = self.blob(&digest)?;
        let document: Value = serde_json::from_slice(&reply.body).ok()?;
        let media_type =
            document["mediaType"].as_str().unwrap_or("application/vnd.oci.image.manifest.v1+json");
        reply.headers =
            vec![format!("Content-Type: {media_type}"), format!("Docker-Content-Digest: {digest}")];
        Some(reply)
    }

    fn blob(&self, digest: &str) -> Option<Reply> {
        let hex = digest.strip_prefix("sha256:")?;
        let data = self.storage.as_ref()?.join(format!("blobs/sha256/{}/{hex}/data", hex.get(..2)?));
        Some(Reply::new("200 OK", std::fs::read(data).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::image::{ImageLayer, TestImage};
    use crate::tool;

    fn curl(arguments: &[&str]) -> String {
        let always = ["--silent", "--show-error", "--max-time", "60", "--write-out", " %{http_code}"];
        tool::run("curl", always.iter().chain(arguments))
    }

    #[test]
    fn token_is_for_one_repository_until_it_expires() {
        let images = TestRegistry::start();
        let layer = ImageLayer::new().file("/data", vec![7; 1000], 0o644);
        images.push("team/x", "1", &TestImage::new("warren.local/x:1").layer(layer).oci_archive());
        let registry = TokenRegistry::start((Ipv4Addr::LOCALHOST, 0).into(), None, Some(&images));
        let manifest = |repository: &str| format!("http://{}/v2/{repository}/manifests/1", registry.host());
        assert_eq!(curl(&[&manifest("team/x")]), " 401");
        let ask = |login: &str, scope: &str| {
            curl(&["--user", login, &format!("http://{}/token?service=test&scope={scope}", registry.host())])
        };
        assert!(ask("anna:wrong", "repository:team/x:pull").ends_with(" 401"));
        assert!(ask("anna:open sesame", "repository:team/x:push").ends_with(" 400"));
        let given = ask("anna:open sesame", "repository%3Ateam%2Fx%3Apull");
        assert!(given.contains(r#""token":"token-1""#) && given.ends_with(" 200"), "{given}");
        let with =
            |repository: &str| curl(&["--header", "Authorization: Bearer token-1", &manifest(repository)]);
        assert!(with("team/x").ends_with(" 200"), "{}", with("team/x"));
        assert!(with("team/y").ends_with(" 401"));
        registry.expire_tokens();
        assert!(with("team/x").ends_with(" 401"));
    }
}
