//! Writes log entries to stdout or stderr, by their stream: with unchanged bytes, or with control characters escaped.

use std::io::{self, Write};

use warren_daemon::printable;
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

/// Buffered bytes before a write.
const BUFFER: usize = 64 << 10;

/// The prefix of each line.
#[derive(Debug, Clone, Copy)]
pub struct LineStyle {
    /// Task and node: `web.1@node-1 | `.
    pub names: bool,
    /// Time of the line.
    pub timestamps: bool,
}

/// One of the two outputs. A partial line stays open until its next part.
struct LineWriter<W> {
    writer: W,
    /// Control characters are escaped.
    escapes: bool,
    buffer: Vec<u8>,
    /// Task and stream of the open line.
    open_line: Option<(String, i32)>,
}

impl<W: Write> LineWriter<W> {
    fn new(to: W, escapes: bool) -> Self {
        Self { writer: to, escapes, buffer: Vec::new(), open_line: None }
    }

    fn line(&mut self, source: (String, i32), start: &str, line: &v1::LogLine) -> io::Result<()> {
        if self.open_line.as_ref() != Some(&source) {
            self.close();
            self.buffer.extend_from_slice(start.as_bytes());
        }
        match self.escapes {
            // Programs end lines with both characters when they write to a terminal.
            true => self.buffer.extend_from_slice(
                printable(String::from_utf8_lossy(&line.text).trim_end_matches('\r')).as_bytes(),
            ),
            false => self.buffer.extend_from_slice(&line.text),
        }
        self.open_line = line.partial.then_some(source);
        if !line.partial {
            self.buffer.push(b'\n');
        }
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Ends an open line before other output.
    fn close(&mut self) {
        if self.open_line.take().is_some() {
            self.buffer.push(b'\n');
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.writer.write_all(&self.buffer).and_then(|()| self.writer.flush());
        self.buffer.clear();
        written
    }
}

/// Prints entries in order of arrival.
pub struct LogPrinter<O, E> {
    style: LineStyle,
    out: LineWriter<O>,
    err: LineWriter<E>,
    lines: u64,
    warnings: u64,
}

impl<O: Write, E: Write> LogPrinter<O, E> {
    /// Output is buffered until a flush. `escapes`: whether control characters are escaped in each of the two.
    pub fn new(out: O, err: E, style: LineStyle, escapes: [bool; 2]) -> Self {
        let [out_escapes, err_escapes] = escapes;
        let (out, err) = (LineWriter::new(out, out_escapes), LineWriter::new(err, err_escapes));
        Self { style, out, err, lines: 0, warnings: 0 }
    }

    pub fn print(&mut self, entry: v1::LogEntry) -> io::Result<()> {
        let v1::LogEntry { task_id, service_name, slot, node_name, entry } = entry;
        let name = format!("{service_name}.{slot}@{node_name}");
        match entry {
            Some(Entry::Line(line)) => {
                self.lines += 1;
                let mut start = if self.style.names { format!("{name} | ") } else { String::new() };
                if self.style.timestamps {
                    start += &format!("{} ", time(line.at_ns));
                }
                let source = (task_id, line.stream);
                match line.stream() {
                    v1::LogStream::Err => {
                        // Keeps the order if both outputs are the same file.
                        self.out.flush()?;
                        self.err.line(source, &start, &line)
                    }
                    v1::LogStream::Out | v1::LogStream::Unspecified => {
                        self.err.flush()?;
                        self.out.line(source, &start, &line)
                    }
                }
            }
            Some(Entry::GapReason(why)) => {
                self.warnings += 1;
                self.out.flush()?;
                self.err.close();
                let source = if service_name.is_empty() { node_name } else { name };
                self.err
                    .buffer
                    .extend_from_slice(format!("warning: {source}: {}\n", printable(&why)).as_bytes());
                self.err.flush()
            }
            // An entry kind of a later version.
            None => Ok(()),
        }
    }

    /// Writes the buffers.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.err.flush()
    }

    /// Whether there were warnings but no lines.
    pub fn has_only_warnings(&self) -> bool {
        self.lines == 0 && self.warnings > 0
    }
}

/// RFC 3339 with nanoseconds, in UTC.
fn time(at_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at_ns));
    time.map_or_else(|_| at_ns.to_string(), |time| format!("{time:.9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(slot: u32, stream: v1::LogStream, text: &[u8], partial: bool) -> v1::LogEntry {
        let line = v1::LogLine {
            at_ns: 1_795_184_280_120_000_001,
            stream: stream.into(),
            text: text.to_vec().into(),
            partial,
        };
        v1::LogEntry {
            task_id: format!("s-{slot}"),
            service_name: "web".into(),
            slot,
            node_name: "n1".into(),
            entry: Some(Entry::Line(line)),
        }
    }

    fn printed(style: LineStyle, entries: Vec<v1::LogEntry>) -> (String, String, bool) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut printer = LogPrinter::new(&mut out, &mut err, style, [false; 2]);
        entries.into_iter().for_each(|entry| printer.print(entry).unwrap());
        printer.flush().unwrap();
        let only_warnings = printer.has_only_warnings();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&out), text(&err), only_warnings)
    }

    const PLAIN: LineStyle = LineStyle { names: false, timestamps: false };
    const NAMES: LineStyle = LineStyle { names: true, timestamps: false };

    #[test]
    fn lines_keep_stream_and_prefix() {
        let (out, err) = (v1::LogStream::Out, v1::LogStream::Err);
        let entries = || vec![line(1, out, b"a", false), line(2, err, b"b", false), line(2, out, b"", false)];
        let (stdout, stderr, _) = printed(PLAIN, entries());
        assert_eq!((stdout.as_str(), stderr.as_str()), ("a\n\n", "b\n"));
        let (stdout, stderr, _) = printed(NAMES, entries());
        assert_eq!((stdout.as_str(), stderr.as_str()), ("web.1@n1 | a\nweb.2@n1 | \n", "web.2@n1 | b\n"));
        let (stdout, ..) = printed(LineStyle { names: true, timestamps: true }, entries());
        assert!(stdout.starts_with("web.1@n1 | 2026-11-20T14:18:00.120000001Z a\n"), "{stdout}");
    }

    #[test]
    fn partial_lines_join_unless_interleaved() {
        let out = v1::LogStream::Out;
        let parts = vec![line(1, out, b"lo", true), line(1, out, b"ng", false), line(1, out, b"x", false)];
        assert_eq!(printed(NAMES, parts).0, "web.1@n1 | long\nweb.1@n1 | x\n");
        let between = vec![line(1, out, b"lo", true), line(2, out, b"x", false), line(1, out, b"ng", false)];
        assert_eq!(printed(NAMES, between).0, "web.1@n1 | lo\nweb.2@n1 | x\nweb.1@n1 | ng\n");
        // Each stream has its own open line.
        let streams = vec![
            line(1, out, b"lo", true),
            line(1, v1::LogStream::Err, b"x", false),
            line(1, out, b"ng", false),
        ];
        assert_eq!(printed(NAMES, streams).0, "web.1@n1 | long\n");
        // The last line may be partial.
        assert_eq!(printed(PLAIN, vec![line(1, out, b"lo", true)]).0, "lo");
    }

    #[test]
    fn bytes_are_unchanged() {
        let mut out = Vec::new();
        let mut printer = LogPrinter::new(&mut out, Vec::new(), PLAIN, [false; 2]);
        printer.print(line(1, v1::LogStream::Out, b"\xff\x00\x1b[1m", false)).unwrap();
        printer.flush().unwrap();
        drop(printer);
        assert_eq!(out, b"\xff\x00\x1b[1m\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut printer = LogPrinter::new(&mut out, &mut err, PLAIN, [true, false]);
        for stream in [v1::LogStream::Out, v1::LogStream::Err] {
            printer.print(line(1, stream, b"\xc3\xa4\t\x1b[2J\xc2\x9b\r", false)).unwrap();
        }
        printer.flush().unwrap();
        drop(printer);
        assert_eq!(String::from_utf8(out).unwrap(), "\u{e4}\t\\u{1b}[2J\\u{9b}\n");
        assert_eq!(err, b"\xc3\xa4\t\x1b[2J\xc2\x9b\r\n");
    }

    #[test]
    fn warnings_go_to_stderr() {
        let warning = || v1::LogEntry {
            service_name: "web".into(),
            slot: 1,
            node_name: "n1".into(),
            entry: Some(Entry::GapReason("the node is down".into())),
            ..Default::default()
        };
        let (stdout, stderr, only_warnings) = printed(NAMES, vec![warning()]);
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", "warning: web.1@n1: the node is down\n"));
        assert!(only_warnings);
        let some = vec![line(1, v1::LogStream::Out, b"a", false), warning()];
        assert!(!printed(NAMES, some).2);
        assert!(!printed(NAMES, vec![]).2, "no lines are no warning");
    }
}
