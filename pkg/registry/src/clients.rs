//! HTTP clients for all registries: one for those on loopback, one for the others, and one that does not connect to
//! internal addresses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tokio::sync::{OnceCell, Semaphore};
use warren_types::image_reference::is_loopback_registry;

use super::address_guard::{AddressGuard, GuardedResolver};
use super::auth::RegistryAuth;
use super::client::{Repository, TokenGuard, note_redirect};
use super::credentials::RegistryAccess;
use super::error::RegistryError;
use super::settings::{RegistryPolicy, RegistrySettings};
use crate::reference::Reference;

/// Concurrent layer downloads from one registry, over all pulls.
const MAX_TRANSFERS: usize = 6;
const MAX_REDIRECTS: usize = 10;
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const HUB_HOST: &str = "registry-1.docker.io";

/// All registries, with the settings of this node.
#[derive(Debug)]
pub struct RegistryClients {
    settings: RegistrySettings,
    direct: OnceCell<Client>,
    proxied: OnceCell<Client>,
    /// Resolves no name to a forbidden address.
    guarded: OnceCell<Client>,
    transfers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl RegistryClients {
    /// The registries with these settings. Nothing is read or contacted before it is needed.
    pub fn new(settings: RegistrySettings) -> Self {
        Self {
            settings,
            direct: OnceCell::new(),
            proxied: OnceCell::new(),
            guarded: OnceCell::new(),
            transfers: Mutex::default(),
        }
    }

    /// Timeouts and retry limits.
    pub fn policy(&self) -> &RegistryPolicy {
        &self.settings.policy
    }

    /// The repository of an image, with the given access or the credentials of this node.
    ///
    /// # Errors
    /// The HTTP client cannot be built, or the settings forbid to ask the registry.
    pub async fn repository(
        &self,
        reference: &Reference,
        access: Option<RegistryAccess>,
    ) -> Result<Repository, RegistryError> {
        let (registry, path) = (reference.domain(), reference.path());
        let is_plain = self.settings.uses_plain_http(registry);
        let host = if registry == "docker.io" { HUB_HOST } else { registry };
        let scheme = if is_plain { "http" } else { "https" };
        let base = format!("{scheme}://{host}/v2/{path}");
        let guard = self.settings.address_guard();
        let mut kind = if is_loopback_registry(registry) { ClientKind::Direct } else { ClientKind::Proxied };
        if let Some(guard) = &guard {
            let forbidden =
                |reason: String| RegistryError::Forbidden { registry: registry.to_owned(), reason };
            let url = Url::parse(&base).map_err(|error| forbidden(error.to_string()))?;
            guard.check(&url).map_err(|error| forbidden(error.to_string()))?;
            kind = if guard.is_exempt(&url) { kind } else { ClientKind::Guarded };
        }
        let guard = match guard {
            Some(rules) => {
                Some(TokenGuard { rules, client: self.client(ClientKind::Guarded, registry).await? })
            }
            None => None,
        };
        let image = match (reference.tag(), reference.digest()) {
            (_, Some(digest)) => format!("{path}@{digest}"),
            (tag, None) => format!("{path}:{}", tag.unwrap_or_default()),
        };
        let own = self.settings.credentials_for(registry).cloned().map(RegistryAccess::Password);
        Ok(Repository {
            http: self.client(kind, registry).await?,
            guard,
            base,
            registry: registry.to_owned(),
            path: path.to_owned(),
            image,
            uses_plain_http: is_plain,
            auth: RegistryAuth::new(registry, access.or(own)),
            policy: self.settings.policy.clone(),
            transfers: self.transfers(registry),
        })
    }

    async fn client(&self, kind: ClientKind, registry: &str) -> Result<Client, RegistryError> {
        let client = match kind {
            ClientKind::Direct => &self.direct,
            ClientKind::Proxied => &self.proxied,
            ClientKind::Guarded => &self.guarded,
        };
        let build = || async {
            let settings = self.settings.clone();
            // Building the client reads the system certificates.
            let built = tokio::task::spawn_blocking(move || client_for(&settings, kind));
            built.await.expect("building an HTTP client does not panic")
        };
        let http = client.get_or_try_init(build).await.map_err(|error| RegistryError::Tls {
            registry: registry.to_owned(),
            reason: error.to_string(),
            advice: "check the system certificates of this machine",
            is_own_host: false,
        })?;
        Ok(http.clone())
    }

    fn transfers(&self, registry: &str) -> Arc<Semaphore> {
        let mut all = self.transfers.lock().expect("no holder panics");
        if let Some(existing) = all.get(registry).and_then(Weak::upgrade) {
            return existing;
        }
        all.retain(|_, semaphore| semaphore.strong_count() > 0);
        let made = Arc::new(Semaphore::new(MAX_TRANSFERS));
        all.insert(registry.to_owned(), Arc::downgrade(&made));
        made
    }
}

/// How a client connects.
#[derive(Clone, Copy, Debug)]
enum ClientKind {
    /// To this machine: never through a proxy.
    Direct,
    Proxied,
    /// As `Proxied`, and resolves no name to a forbidden address.
    Guarded,
}

fn client_for(settings: &RegistrySettings, kind: ClientKind) -> reqwest::Result<Client> {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (added, ignored) = roots.add_parsable_certificates(native.certs);
    tracing::debug!(added, ignored, errors = ?native.errors, "read system certificates");
    roots.add_parsable_certificates(settings.authorities.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("warren/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(settings.policy.connect_timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(redirects(settings.address_guard()));
    match kind {
        ClientKind::Direct => client.no_proxy(),
        ClientKind::Proxied => client,
        ClientKind::Guarded => client.dns_resolver(Arc::new(GuardedResolver::from_environment())),
    }
    .build()
}

/// Blobs are often on another host. reqwest does not forward credentials to another host.
fn redirects(guard: Option<AddressGuard>) -> Policy {
    Policy::custom(move |attempt| {
        note_redirect();
        let Some(previous) = attempt.previous().last() else { return attempt.follow() };
        if previous.scheme() == "https" && attempt.url().scheme() != "https" {
            return attempt.error("redirect from TLS to plain HTTP");
        }
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error("too many redirects");
        }
        let checked = guard.as_ref().map(|guard| guard.check_redirect(previous, attempt.url()));
        match checked.transpose() {
            Ok(_) => attempt.follow(),
            Err(forbidden) => attempt.error(forbidden),
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::digest::Digest;
    use crate::media_type::OCI_INDEX;
    use crate::resolve::{ResolveNames, ResolvedName};

    /// The host and port of a server that answers each request with these lines.
    async fn server(answer: &str) -> String {
        let answer = format!("HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        host
    }

    /// What a client answers that refuses internal addresses.
    async fn ask(image: &str, insecure: &[&str]) -> Result<ResolvedName, RegistryError> {
        let mut settings = RegistrySettings::default();
        settings.policy.max_tries = 1;
        settings.refuse_internal_addresses();
        for host in insecure {
            settings.allow_plain_http(host).unwrap();
        }
        RegistryClients::new(settings).resolve(&Reference::parse(image).unwrap(), None).await
    }

    #[tokio::test]
    async fn only_listed_registries_of_this_machine_are_asked() {
        let digest = Digest::of(b"web");
        let head = format!(
            "200 OK\r\nContent-Type: {OCI_INDEX}\r\nContent-Length: 7\r\nDocker-Content-Digest: {digest}"
        );
        let host = server(&head).await;
        let image = format!("{host}/web:1");
        let resolved = ask(&image, &[&host]).await.unwrap();
        assert_eq!((resolved.digest, resolved.media_type.as_str(), resolved.size), (digest, OCI_INDEX, 7));
        for image in [image.as_str(), "localhost:5000/web:1", "169.254.169.254/web:1"] {
            let refused = ask(image, &["127.0.0.1:1"]).await.unwrap_err();
            assert!(
                matches!(refused, RegistryError::Forbidden { .. }) && !refused.is_transient(),
                "{refused}"
            );
        }
    }

    #[tokio::test]
    async fn only_a_failed_connection_to_the_registry_itself_concerns_all_its_images() {
        // No program listens there, and the kernel gives this port to no other test.
        let dead = "127.0.0.1:1".to_owned();
        let redirect = server(&format!("307 There\r\nContent-Length: 0\r\nLocation: http://{dead}/x")).await;
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{dead}/token\"");
        let token_service = server(&format!("401 Who\r\nContent-Length: 0\r\n{challenge}")).await;
        let mut settings = RegistrySettings::default();
        settings.policy.max_tries = 1;
        let clients = RegistryClients::new(settings);
        for (host, expected) in [(&dead, true), (&redirect, false), (&token_service, false)] {
            let reference = Reference::parse(&format!("{host}/web:1")).unwrap();
            let error = clients.resolve(&reference, None).await.unwrap_err();
            let RegistryError::Unreachable { is_own_host, .. } = &error else { panic!("{host}: {error}") };
            assert_eq!(*is_own_host, expected, "{host}: {error}");
        }
    }

    #[tokio::test]
    async fn redirects_and_token_services_do_not_lead_to_internal_addresses() {
        let redirect =
            server("307 Elsewhere\r\nContent-Length: 0\r\nLocation: http://169.254.169.254/x").await;
        let refused = ask(&format!("{redirect}/web:1"), &[&redirect]).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Forbidden { .. }), "{refused}");
        let challenge =
            "401 Who\r\nContent-Length: 0\r\nWWW-Authenticate: Bearer realm=\"http://127.0.0.1:1/token\"";
        let private = server(challenge).await;
        let refused = ask(&format!("{private}/web:1"), &[&private]).await.unwrap_err();
        assert!(refused.to_string().contains("token service: 127.0.0.1"), "{refused}");
    }
}
