package holdfast;

import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, checksums and all, but for one thing: where Hadoop's native library is missing (PySpark brings
 * none) it starts a process, chmod, for each file that it creates. Java can do that by itself.
 *
 * <p>Compiled by "python -m tools.local_files" into local_files.jar; see local_files.py.
 */
public final class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new WithoutProcesses());
  }

  private static final class WithoutProcesses extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Files.setAttribute(pathToFile(path).toPath(), "unix:mode", (int) permission.toShort());
    }
  }
}
