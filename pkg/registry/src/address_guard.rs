//! The addresses that a manager does not ask for images: its own, those of links, and those of metadata services. Users
//! choose the names of images, so they must not choose what the manager connects to.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use warren_types::image_reference::is_loopback_registry;

/// The metadata service of a cloud that has an address of its own.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
/// Variables that name the proxy of the HTTP client, in either case.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// A host that is not connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is at an address of this machine, of a link or of a metadata service")]
pub(crate) struct ForbiddenAddress {
    host: String,
}

/// Decides which hosts of URLs may be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressGuard {
    /// Registries at any address, `HOST` or `HOST:PORT` as in image names.
    exempt: BTreeSet<String>,
}

impl AddressGuard {
    pub fn new(exempt: BTreeSet<String>) -> Self {
        Self { exempt }
    }

    /// Whether the URL is of an exempt registry: the same host and port.
    pub fn is_exempt(&self, url: &Url) -> bool {
        let Some(host) = url.host_str() else { return false };
        let with_port = url.port_or_known_default().map(|port| format!("{host}:{port}"));
        let is_default = url.port().is_none();
        with_port.is_some_and(|name| self.exempt.contains(&name))
            || (is_default && self.exempt.contains(host))
    }

    /// Checks the host of the URL, as far as its name tells.
    ///
    /// # Errors
    /// It is a forbidden address.
    pub fn check(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        let host = url.host_str().unwrap_or_default();
        let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        let is_forbidden = address.map_or_else(|| is_loopback_registry(host), is_forbidden);
        match is_forbidden && !self.is_exempt(url) {
            true => Err(ForbiddenAddress { host: host.to_owned() }),
            false => Ok(()),
        }
    }

    /// As [`Self::check`] for the target of a redirect that an exempt registry sends: its name is not resolved by
    /// [`GuardedResolver`], so it must be exempt too.
    pub fn check_redirect(&self, from: &Url, to: &Url) -> Result<(), ForbiddenAddress> {
        match self.is_exempt(from) && !self.is_exempt(to) {
            true => Err(ForbiddenAddress { host: to.host_str().unwrap_or_default().to_owned() }),
            false => self.check(to),
        }
    }
}

fn is_forbidden(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(mapped) => is_forbidden(mapped.into()),
            None => {
                ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local() || ip == METADATA_V6
            }
        },
    }
}

/// Resolves names to addresses that are not forbidden.
#[derive(Debug)]
pub(crate) struct GuardedResolver {
    /// Names of proxies, which an administrator chose.
    proxies: BTreeSet<String>,
}

impl GuardedResolver {
    /// Reads the proxies of this process.
    pub fn from_environment() -> Self {
        let names = PROXY_VARIABLES.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_lowercase()]);
        let values = names.filter_map(|name| std::env::var(name).ok());
        let hosts = values.filter_map(|value| proxy_host(&value));
        Self { proxies: hosts.collect() }
    }
}

/// The host of a proxy, which may be given without a scheme.
fn proxy_host(value: &str) -> Option<String> {
    let value = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
    Some(Url::parse(&value).ok()?.host_str()?.to_owned())
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_ascii_lowercase();
        let is_proxy = self.proxies.contains(&host);
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let found = if is_proxy { found.collect::<Vec<_>>() } else { allowed(&host, found)? };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The addresses without the forbidden ones.
///
/// # Errors
/// All of them are forbidden.
fn allowed(host: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, ForbiddenAddress> {
    let (forbidden, allowed): (Vec<_>, Vec<_>) = found.partition(|address| is_forbidden(address.ip()));
    match allowed.is_empty() && !forbidden.is_empty() {
        true => Err(ForbiddenAddress { host: host.to_owned() }),
        false => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> AddressGuard {
        AddressGuard::new(["127.0.0.1:5000", "registry.lan"].map(str::to_owned).into())
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_of_machine_link_and_metadata_are_forbidden() {
        for (target, is_allowed) in [
            ("https://docker.io/v2/", true),
            ("https://10.0.0.1:5000/v2/", true),
            ("https://[2001:db8::1]/v2/", true),
            ("https://169.254.169.254/v2/", false),
            ("http://169.254.0.7:5000/v2/", false),
            ("https://[fe80::1]:5000/v2/", false),
            ("https://[fd00:ec2::254]/v2/", false),
            ("https://[::1]/v2/", false),
            ("https://[::ffff:127.0.0.1]/v2/", false),
            ("https://127.8.0.1/v2/", false),
            ("https://2130706433/v2/", false),
            ("https://0.0.0.0/v2/", false),
            ("https://localhost:5000/v2/", false),
            ("https://registry.localhost/v2/", false),
            ("http://127.0.0.1:5000/v2/", true),
            ("http://127.0.0.1:5001/v2/", false),
            ("http://registry.lan/v2/", true),
        ] {
            assert_eq!(guard().check(&url(target)).is_ok(), is_allowed, "{target}");
        }
    }

    #[test]
    fn exempt_registry_redirects_to_exempt_ones_only() {
        let check = |from: &str, to: &str| guard().check_redirect(&url(from), &url(to)).is_ok();
        assert!(check("http://127.0.0.1:5000/a", "http://127.0.0.1:5000/b"));
        assert!(check("http://127.0.0.1:5000/a", "http://registry.lan/b"));
        assert!(!check("http://127.0.0.1:5000/a", "http://registry.lan:81/b"));
        assert!(!check("http://127.0.0.1:5000/a", "https://blobs.example.com/b"));
        assert!(check("https://r.example.com/a", "https://blobs.example.com/b"));
        assert!(!check("https://r.example.com/a", "https://169.254.169.254/b"));
    }

    #[test]
    fn forbidden_addresses_of_a_name_are_left_out() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let resolve = |found: &[&str]| allowed("r.test", found.iter().map(|text| address(text)));
        assert_eq!(resolve(&["127.0.0.1", "10.0.0.1"]), Ok(vec![address("10.0.0.1")]));
        let refused = resolve(&["127.0.0.1", "fe80::1"]).unwrap_err().to_string();
        assert!(refused.contains("r.test"), "{refused}");
        assert_eq!(resolve(&[]), Ok(Vec::new()));
    }

    #[tokio::test]
    async fn name_of_this_machine_is_not_resolved() {
        let resolve = async |proxies: &[&str]| {
            let proxies = proxies.iter().map(|name| (*name).to_owned()).collect();
            GuardedResolver { proxies }.resolve("localhost".parse().unwrap()).await
        };
        let refused = resolve(&[]).await.err().unwrap();
        assert!(refused.is::<ForbiddenAddress>(), "{refused}");
        assert!(resolve(&["localhost"]).await.is_ok_and(|mut found| found.next().is_some()));
    }

    #[test]
    fn proxies_are_read_with_and_without_scheme() {
        assert_eq!(proxy_host("http://Proxy.lan:3128").as_deref(), Some("proxy.lan"));
        assert_eq!(proxy_host("localhost:3128").as_deref(), Some("localhost"));
        assert_eq!(proxy_host(""), None);
    }
}
