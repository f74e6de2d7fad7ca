// A burst of 250 MB, of which nothing is needed any more.
import java.util.ArrayList;

class Burst {
    public static void main(String[] words) throws Exception {
        ArrayList<byte[]> all = new ArrayList<>();
        for (int i = 0; i < 25000; i++) all.add(new byte[10000]);
        all = null;
        System.out.println("ready");
        System.in.read();
    }
}
