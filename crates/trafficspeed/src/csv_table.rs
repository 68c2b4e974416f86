//! Tables as CSV (RFC 4180): a head, lines that end in CR LF, and quotation marks only where a
//! value needs them.

use std::io::{self, Write};

use csv::{Terminator, Writer, WriterBuilder};

/// A writer of such a table. Each record reaches `output` when the writer is flushed.
pub fn writer<W: Write>(output: W) -> Writer<W> {
    WriterBuilder::new().terminator(Terminator::CRLF).from_writer(output)
}

/// Appends one record and hands it on at once, so that a file can be followed while it grows.
///
/// # Errors
/// The output takes no more.
pub fn append<const N: usize>(writer: &mut Writer<impl Write>, record: &[String; N]) -> io::Result<()> {
    writer.write_record(record)?;
    writer.flush()
}

/// A whole table as text.
pub fn text<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut writer = writer(Vec::new());
    writer.write_record(head).expect("memory takes any record");
    for row in rows {
        writer.write_record(row).expect("memory takes any record, and all are of one length");
    }
    let bytes = writer.into_inner().expect("memory can be flushed");
    String::from_utf8(bytes).expect("records are made of text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_must_be_and_read_back_as_they_were() {
        let values = ["plain", "a, b", "it \"broke\"", "two\nlines", "a\rb", ""];
        let text = text(["a", "b", "c", "d", "e", "f"], [values.map(str::to_owned)]);
        assert_eq!(text, "a,b,c,d,e,f\r\nplain,\"a, b\",\"it \"\"broke\"\"\",\"two\nlines\",\"a\rb\",\r\n");
        let read: Vec<_> =
            csv::Reader::from_reader(text.as_bytes()).into_records().map(Result::unwrap).collect();
        assert_eq!(read, [csv::StringRecord::from(values.to_vec())]);
    }

    #[test]
    fn an_appended_record_is_there_at_once() {
        let mut bytes = Vec::new();
        let mut writer = writer(&mut bytes);
        append(&mut writer, &["1".to_owned(), "2".to_owned()]).unwrap();
        assert_eq!(writer.get_ref().as_slice(), b"1,2\r\n");
    }
}
