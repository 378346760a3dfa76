//! Parsers for health checks.

use warren_types::HttpHeader;

use super::port;

/// Target of an HTTP check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// `None` is the lowest container port that the service publishes.
    pub port: Option<u16>,
    /// Starts with `/`.
    pub path: String,
}

/// `[:PORT]/PATH`.
pub fn http_target(text: &str) -> Result<HttpTarget, String> {
    let slash = text
        .find('/')
        .ok_or("give [:PORT]/PATH, like :8080/healthz (--no-health removes the check in an update)")?;
    let (before, path) = text.split_at(slash);
    let port = match before.strip_prefix(':') {
        None if before.is_empty() => None,
        Some(number) => Some(port(number)?),
        None => {
            let why = "the check always connects to the task; give [:PORT]/PATH, like :8080/healthz";
            return Err(format!("{before:?} is not a port: {why}"));
        }
    };
    Ok(HttpTarget { port, path: path.to_owned() })
}

/// A shell command.
pub fn shell_words(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("is empty; give a command (--no-health removes the check in an update)".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// `NAME=VALUE`; validated with the spec.
pub fn header(text: &str) -> Result<HttpHeader, String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE, like Host=shop.example")?;
    Ok(HttpHeader { name: name.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_check_has_a_path_and_may_have_a_port() {
        let target = |port, path: &str| Ok(HttpTarget { port, path: path.to_owned() });
        assert_eq!(http_target("/"), target(None, "/"));
        assert_eq!(http_target("/a:1/b?c=d"), target(None, "/a:1/b?c=d"));
        assert_eq!(http_target(":8080/healthz"), target(Some(8080), "/healthz"));
        for (bad, why) in [
            ("", "give [:PORT]/PATH"),
            (":8080", "give [:PORT]/PATH"),
            ("8080/", "\"8080\" is not a port: the check always connects to the task"),
            ("http://web/", "\"http:\" is not a port"),
            (":0/", "\"0\" is not a port; give one of 1 to 65535"),
            (":/", "\"\" is not a port"),
        ] {
            let found = http_target(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn headers_and_commands_parse() {
        assert_eq!(shell_words("test -e /ok"), Ok("test -e /ok".to_owned()));
        assert!(shell_words(" ").is_err());
        let pair = |name: &str, value: &str| Ok(HttpHeader { name: name.into(), value: value.into() });
        assert_eq!((header("Host=a=b"), header("X=")), (pair("Host", "a=b"), pair("X", "")));
        assert!(header("Host: a").unwrap_err().starts_with("give NAME=VALUE"));
    }
}
