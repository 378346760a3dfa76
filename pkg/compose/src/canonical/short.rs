//! Short forms of values.

use std::ops::RangeInclusive;

use warren_types::spec::MAX_PORTS;

use crate::problem::SourcePosition;
use crate::schema::ShortForm;
use crate::yaml::{ScalarType, YamlEntry, YamlMap, YamlNode, YamlValue};

/// The long form of a value; what is not in the short form is returned as it is.
pub(super) fn lengthened(node: YamlNode, short: ShortForm) -> Result<YamlNode, (SourcePosition, String)> {
    let (at, merge) = (node.at.clone(), node.merge);
    let long = match (short, &node.value) {
        (ShortForm::Key(key), YamlValue::Scalar(..)) => YamlNode::map_of([(key, node)], &at),
        // Items have `Key` for their own short form; a list of paths stays one.
        (ShortForm::Key("path"), YamlValue::List(_)) => YamlNode::map_of([("path", node)], &at),
        (ShortForm::OneItem, YamlValue::Scalar(..)) => YamlNode::new(YamlValue::List(vec![node]), &at),
        (ShortForm::Names, YamlValue::List(items)) => {
            let mut names = YamlMap::new();
            for item in items {
                let Some(name) = item.as_text() else {
                    return Err((item.at.clone(), format!("has {}; give a name", item.type_name())));
                };
                let empty = YamlNode::scalar("", ScalarType::Null, &item.at);
                names.insert(name.into(), YamlEntry { key_at: item.at.clone(), node: empty });
            }
            YamlNode::new(YamlValue::Map(names), &at)
        }
        (ShortForm::Mount, YamlValue::Scalar(text, _)) => {
            mount(text, &at).map_err(|why| (at.clone(), why))?
        }
        (ShortForm::Device, YamlValue::Scalar(text, _)) => {
            device(text, &at).map_err(|why| (at.clone(), why))?
        }
        (ShortForm::Ulimit, YamlValue::Scalar(..)) => {
            YamlNode::map_of([("soft", node.clone()), ("hard", node)], &at)
        }
        (ShortForm::HealthTest, YamlValue::Scalar(..)) => {
            YamlNode::new(YamlValue::List(vec![YamlNode::text("CMD-SHELL", &at), node]), &at)
        }
        _ => return Ok(node),
    };
    Ok(YamlNode { merge, ..long })
}

/// `[SOURCE:]TARGET[:OPTIONS]`.
fn mount(text: &str, at: &SourcePosition) -> Result<YamlNode, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, options) = match parts[..] {
        [target] => (None, target, ""),
        [source, target] => (Some(source), target, ""),
        [source, target, options] => (Some(source), target, options),
        _ => return Err(format!("{text:?} has too many colons; use the long form")),
    };
    if target.is_empty() || source == Some("") {
        return Err(format!("{text:?} is not [SOURCE:]TARGET[:ro]"));
    }
    let is_bind = source.is_some_and(|source| source.starts_with(['/', '.', '~']));
    let kind = if is_bind { "bind" } else { "volume" };
    let mut mount = vec![("type", YamlNode::text(kind, at)), ("target", YamlNode::text(target, at))];
    mount.extend(source.map(|source| ("source", YamlNode::text(source, at))));
    let (mut of_bind, mut of_volume) = (Vec::new(), Vec::new());
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let yes = YamlNode::scalar("true", ScalarType::Bool, at);
        match option {
            "ro" => mount.push(("read_only", yes)),
            "rw" => {}
            "nocopy" if !is_bind => of_volume.push(("nocopy", yes)),
            "z" | "Z" if is_bind => of_bind.push(("selinux", YamlNode::text(option, at))),
            "z" | "Z" => {}
            "cached" | "delegated" | "consistent" => mount.push(("consistency", YamlNode::text(option, at))),
            _ if is_bind && option.trim_start_matches('r').len() > 4 => {
                of_bind.push(("propagation", YamlNode::text(option, at)));
            }
            _ => {
                return Err(format!(
                    "{option:?} is not an option of a volume; there are ro, rw, z, Z and nocopy"
                ));
            }
        }
    }
    for (key, options) in [("bind", of_bind), ("volume", of_volume)] {
        if !options.is_empty() {
            mount.push((key, YamlNode::map_of(options, at)));
        }
    }
    Ok(YamlNode::map_of(mount, at))
}

/// `SOURCE[:TARGET[:PERMISSIONS]]`.
fn device(text: &str, at: &SourcePosition) -> Result<YamlNode, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, permissions) = match parts[..] {
        [source] => (source, source, "rwm"),
        [source, target] => (source, target, "rwm"),
        [source, target, permissions] => (source, target, permissions),
        _ => return Err(format!("{text:?} is not SOURCE[:TARGET[:PERMISSIONS]]")),
    };
    let entries = [("source", source), ("target", target), ("permissions", permissions)];
    Ok(YamlNode::map_of(entries.map(|(key, value)| (key, YamlNode::text(value, at))), at))
}

/// `[HOST_IP:][PUBLISHED:]TARGET[/PROTOCOL]`: a long form for each port of a range.
pub(super) fn ports(text: &str, at: &SourcePosition) -> Result<Vec<YamlNode>, String> {
    let (address, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, target) = address.rsplit_once(':').map_or((None, address), |(rest, port)| (Some(rest), port));
    let (ip, published) = match rest.map(|rest| rest.rsplit_once(':').ok_or(rest)) {
        None => (None, None),
        Some(Err(published)) => (None, Some(published)),
        Some(Ok((ip, published))) => (Some(ip), Some(published)),
    };
    let published = published.filter(|published| !published.is_empty());
    let (targets, given) = (port_range(target)?, published.map(port_range).transpose()?);
    if targets.len() > MAX_PORTS {
        return Err(format!("{text:?} are {} ports, more than {MAX_PORTS}", targets.len()));
    }
    let is_pool = given.as_ref().is_some_and(|ports| ports.len() > 1) && targets.len() == 1;
    if let Some(ports) = given.as_ref().filter(|ports| !is_pool && ports.len() != targets.len()) {
        let (published, targets) = (ports.len(), targets.len());
        return Err(format!("{text:?} maps {published} ports to {targets}; give ranges of one length"));
    }
    let port = |(i, target): (usize, u16)| {
        let number = |port: u16| YamlNode::scalar(&port.to_string(), ScalarType::Integer, at);
        let mut port = vec![("target", number(target)), ("protocol", YamlNode::text(protocol, at))];
        if let Some(ip) = ip {
            let ip = ip.trim_start_matches('[').trim_end_matches(']');
            port.push(("host_ip", YamlNode::text(ip, at)));
        }
        match &given {
            Some(_) if is_pool => port.push(("published", YamlNode::text(published.unwrap_or_default(), at))),
            Some(ports) => port.extend(ports.clone().nth(i).map(|port| ("published", number(port)))),
            None => {}
        }
        YamlNode::map_of(port, at)
    };
    Ok(targets.enumerate().map(port).collect())
}

/// `PORT` or `FIRST-LAST`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let port = |text: &str| {
        let number = text.parse::<u16>().ok().filter(|port| *port != 0 && !text.starts_with('+'));
        number.ok_or_else(|| format!("{text:?} is not a port; give one of 1 to 65535"))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match port(first)?..=port(last)? {
        range if range.is_empty() => Err(format!("{text:?} is not a range of ports")),
        range => Ok(range),
    }
}
