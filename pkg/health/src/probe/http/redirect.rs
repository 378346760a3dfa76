//! Resolves redirect targets (RFC 9110, 10.2.2; RFC 3986, 5.2) that a check may follow.

use http::header::LOCATION;
use http::{StatusCode, Uri};

use super::HttpResponse;

/// Path and query of the next request, when the answer redirects to the same host and port.
pub(super) fn of(answer: &HttpResponse, host: &str, port: u16, path: &str) -> Option<String> {
    use StatusCode as S;
    let redirects =
        [S::MOVED_PERMANENTLY, S::FOUND, S::SEE_OTHER, S::TEMPORARY_REDIRECT, S::PERMANENT_REDIRECT];
    if !redirects.contains(&answer.response.status()) {
        return None;
    }
    let location = answer.response.headers().get(LOCATION)?.to_str().ok()?;
    next(location, host, port, path)
}

/// `None` for another host or port, or an invalid location.
fn next(location: &str, host: &str, port: u16, path: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default().trim();
    let has_scheme = location.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    let target = if has_scheme {
        on_same_host(location, host, port)?
    } else if location.starts_with("//") {
        on_same_host(&format!("http:{location}"), host, port)?
    } else if location.starts_with('/') {
        location.to_owned()
    } else {
        relative(location, path)
    };
    let asked: Uri = target.parse().ok()?;
    Some(asked.path_and_query()?.to_string())
}

fn on_same_host(location: &str, host: &str, port: u16) -> Option<String> {
    let location: Uri = location.parse().ok()?;
    let name = |text: &str| text.rsplit_once(':').map_or(text, |(name, _)| name).to_ascii_lowercase();
    let authority = location.authority()?;
    let same = location.scheme_str() == Some("http")
        && name(host) == authority.host().to_ascii_lowercase()
        && authority.port_u16().unwrap_or(80) == port;
    same.then(|| location.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string))
}

/// Resolves a reference without a leading `/` against the directory of `path`, including dot segments.
fn relative(location: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    if location.is_empty() || location.starts_with('?') {
        return format!("{path}{location}");
    }
    let (location, query) = match location.split_once('?') {
        Some((location, query)) => (location, format!("?{query}")),
        None => (location, String::new()),
    };
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut parts: Vec<&str> = Vec::new();
    let joined = format!("{directory}/{location}");
    for part in joined.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_on_the_same_host_and_port_only() {
        for (location, expected) in [
            ("/login", Some("/login")),
            ("/login?next=%2F#top", Some("/login?next=%2F")),
            ("http://localhost:8080/x?y", Some("/x?y")),
            ("HTTP://LOCALHOST:8080/x", Some("/x")),
            ("http://localhost:8080", Some("/")),
            ("//localhost:8080/x", Some("/x")),
            ("ready", Some("/app/ready")),
            ("./ready?a", Some("/app/ready?a")),
            ("../ready", Some("/ready")),
            ("../../../ready", Some("/ready")),
            ("?again", Some("/app/live?again")),
            ("", Some("/app/live")),
            ("http://localhost/x", None),
            ("http://localhost:8081/x", None),
            ("https://localhost:8080/x", None),
            ("http://example.com:8080/x", None),
            ("//example.com/x", None),
            ("ftp://localhost:8080/x", None),
            ("/a b", None),
        ] {
            let target = next(location, "localhost:8080", 8080, "/app/live?q=1");
            assert_eq!(target.as_deref(), expected, "{location:?}");
        }
        assert_eq!(next("http://web.example/x", "web.example", 80, "/").as_deref(), Some("/x"));
    }
}
