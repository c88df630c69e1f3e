"""What the JVM of a local master has from Holdfast: Java, compiled beforehand."""
