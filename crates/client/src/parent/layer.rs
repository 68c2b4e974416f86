//! Which of a machine's tunnels this one is: the newest is the innermost, and carries what the
//! others could carry too.
//!
//! A tunnel's own datagrams may go through the tunnels that are older, and through no other: so no
//! two tunnels carry each other. The layer decides about the mark of these datagrams
//! ([`Layer::mark`]), and with that about all rules. INVARIANT: the privileged process takes it,
//! and no other process chooses it.

use std::io;
use std::os::unix::fs::FileExt as _;

use vpnd_journal::{JournalDirectory, tunnels};
use vpnd_sys::change::Layer;
use vpnd_sys::lock::LockedFile;

/// A layer that no other client of this network namespace has.
#[derive(Debug)]
pub(super) struct OwnLayer {
    layer: Layer,
    directory: JournalDirectory,
    name: String,
    /// Locked as long as the layer is held.
    file: LockedFile,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LayerError {
    #[error("{0} clients run on this machine already, which is the most: end one of them", Layer::COUNT)]
    NoneLeft,
    #[error("the places of this machine's tunnels can't be read: {0}")]
    Os(#[from] io::Error),
}

impl OwnLayer {
    /// Takes the layer above all that are in use; where there is none, the highest that is free.
    pub(super) fn take(directory: &JournalDirectory) -> Result<Self, LayerError> {
        let namespace = rustix::fs::stat("/proc/self/ns/net").map_err(io::Error::from)?.st_ino;
        let places = tunnels::places()?;
        let name = |layer: Layer| format!("{places}{}", layer.number());
        // Two that start at once look one after the other.
        let turn = format!("tunnels-{namespace}");
        let _turn = directory.wait_for(&turn)?;
        let mut above: Option<(Layer, LockedFile)> = None;
        for layer in Layer::all().rev() {
            match directory.take(&name(layer))? {
                Some(file) => {
                    if let Some((higher, _file)) = above.replace((layer, file)) {
                        directory.remove(&name(higher))?;
                    }
                }
                // The highest that is in use.
                None if above.is_some() => break,
                None => {}
            }
        }
        directory.remove(&turn)?;
        let (layer, file) = above.ok_or(LayerError::NoneLeft)?;
        let directory = directory.try_clone()?;
        Ok(Self { layer, directory, name: name(layer), file })
    }

    pub(super) fn layer(&self) -> Layer {
        self.layer
    }

    /// Notes the tunnel's state, for [`tunnels::states`].
    pub(super) fn note(&self, state: &str) {
        // Nothing but the display depends on it.
        let _ = self.file.set_len(0).and_then(|()| self.file.write_all_at(state.as_bytes(), 0));
    }
}

impl Drop for OwnLayer {
    fn drop(&mut self) {
        // While it is locked: a process that opens it afterwards makes another.
        let _ = self.directory.remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_tunnel_is_above_all_others() {
        let place = tempfile::tempdir().unwrap();
        let directory = JournalDirectory::create(place.path()).unwrap();
        let take = || OwnLayer::take(&directory).unwrap();
        let number = |own: &OwnLayer| own.layer().number();
        let (first, second) = (take(), take());
        first.note("vpn0 to vpn.example: connecting");
        first.note("vpn0 to vpn.example: connected");
        second.note("vpn1 to other.example: connecting");
        let states = ["vpn0 to vpn.example: connected", "vpn1 to other.example: connecting"];
        assert_eq!(tunnels::states(&directory).unwrap(), states);
        assert_eq!((number(&first), number(&second)), (0, 1));
        drop(first);
        assert_eq!(tunnels::states(&directory).unwrap(), states[1..]);
        let third = take();
        assert_eq!(number(&third), 2, "not the free one below the second");
        drop((second, third));
        let all: Vec<_> = (0..Layer::COUNT).map(|_| take()).collect();
        assert_eq!(all.iter().map(number).collect::<Vec<_>>(), (0..Layer::COUNT).collect::<Vec<_>>());
        assert!(matches!(OwnLayer::take(&directory), Err(LayerError::NoneLeft)));
        let mut all = all;
        all.remove(3);
        let again = take();
        assert_eq!(number(&again), 3, "the highest that is free");
        drop((all, again));
        assert_eq!(number(&take()), 0);
        assert!(directory.names().unwrap().is_empty(), "{:?}", directory.names());
    }
}
