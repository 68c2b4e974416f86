//! Failures of SQLite as errors of the store.

use std::fs;
use std::path::Path;

use rusqlite::ErrorCode;

use super::super::StoreError;
use super::place::is_full;
use crate::sql::SqlError;

pub(super) fn corrupted(path: &Path, detail: String) -> StoreError {
    StoreError::corrupted(path.to_owned(), detail)
}

/// Explains errors of statements that the engines share.
pub(crate) fn explain_sql(path: &Path, error: SqlError) -> StoreError {
    match error {
        SqlError::Sqlite(error) => explain(path, error),
        SqlError::Damaged(detail) => corrupted(path, detail.to_owned()),
        error => StoreError::Failed { path: path.to_owned(), detail: error.to_string() },
    }
}

/// Tells the causes apart that call for different deeds.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    let path_buf = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => corrupted(path, error.to_string()),
        Some(ErrorCode::DiskFull) => StoreError::Full { path: path_buf },
        // Making room for its shared memory fails in SQLite as an I/O error, whatever the cause.
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if is_full(path) => {
            StoreError::Full { path: path_buf }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { path: path_buf },
        Some(ErrorCode::CannotOpen) => {
            let cause = cannot_open(path).map(|cause| format!(": {cause}")).unwrap_or_default();
            StoreError::Failed { path: path_buf, detail: format!("{error}{cause}") }
        }
        _ => StoreError::Failed { path: path_buf, detail: error.to_string() },
    }
}

/// Returns the system's reason why the database can't be opened, which SQLite keeps to itself.
fn cannot_open(path: &Path) -> Option<std::io::Error> {
    // The descriptors of a store: two connections with three files each, a directory and a
    // temporary file. Closing a second descriptor of such a file would drop SQLite's locks on it,
    // so this opens the directory.
    const DESCRIPTORS: usize = 8;
    let directory = vpnd_sys::secret_file::parent(path);
    let opened: std::io::Result<Vec<_>> = (0..DESCRIPTORS).map(|_| fs::File::open(directory)).collect();
    opened.err().or_else(|| fs::metadata(path).err())
}
